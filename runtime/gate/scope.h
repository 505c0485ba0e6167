// The gate's fast path: what every submitting call pays. A thread raises a word that only it writes, then checks
// whether the gate is open; leaving lowers the word. No locked instruction and no fence: the closer pays for both sides
// with membarrier(2), which makes every running thread pass a full barrier between its store and its load (gate.h).
//
// Where membarrier is missing, the state word is never kOpen, so every call takes the slow path, which is fenced.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "generated/driver_symbols.h"
#include "generated/driver_types.h"
#include "runtime/core/devices.h"
#include "runtime/core/function_ref.h"
#include "runtime/driver/call.h"

namespace rota::gate {

using rota::bit_of;
using rota::Devices;
using rota::kAllDevices;
using rota::kMaxDevices;

struct StreamCalls;  // stream_calls.h

// A thread as the closer sees it, on a cache line of its own. Allocated at a thread's first submitting call and never
// freed: when its thread ends, a new one reuses it, so the closer can walk the list without a lock.
struct alignas(64) Thread {
  // Low 8 bits: how many submitting scopes this thread is inside of; next 8 bits: how many that only hold memory in
  // place; next 8 bits: the one GPU that its only scope reaches, plus one, or 0: not known. The rest: how many
  // submitting calls have left, for the idle detection.
  std::atomic<std::uint64_t> word{0};
  std::atomic<pid_t> tid{0};        // 0: free
  std::atomic<bool> exempt{false};  // waits for nothing (exempt_this_thread()); only its thread writes it
  Thread* next = nullptr;
  // Of the outermost scope that has raised the word: the address at which its function's frame on the stack begins
  // (left.h). Null: unknown.
  std::atomic<const void*> outermost{nullptr};
  // The stream that this thread last submitted to while calls were metered (stream_calls.h), so that it need not look
  // it up again. Only this thread uses it.
  struct Metered {
    StreamCalls* stream = nullptr;
    api::CUstream handle = nullptr;
    api::CUcontext context = nullptr;  // null: the handle is enough
    bool per_thread = false;
  } metered;
  // The GPU of the stream that this thread last submitted to by a handle of its own; only this thread uses it.
  struct Last {
    api::CUstream handle = nullptr;
    std::uint64_t as_of = 0;  // driver::handles_ended
    Devices device = 0;
  } last;
  // Its calls that have entered and were known to reach only this GPU. Only its thread writes them, and they outlive
  // it.
  std::array<std::atomic<std::uint64_t>, kMaxDevices> sorted{};
};
static_assert(offsetof(Thread, last) == 64);

inline constexpr std::uint64_t kEnter = 1;
inline constexpr int kDeviceShift = 16;
inline constexpr int kCallsShift = 24;
inline constexpr std::uint64_t kLeave = (std::uint64_t{1} << kCallsShift) - 1;  // one call more, one level less
inline constexpr std::uint64_t kEnterMapping = std::uint64_t{1} << 8;
inline constexpr std::uint64_t kSubmittingMask = 0xff;
inline constexpr std::uint64_t kDepthMask = 0xffff;
inline constexpr std::uint64_t kDeviceMask = std::uint64_t{0xff} << kDeviceShift;

inline constexpr std::uint32_t kOpen = 0;
inline constexpr std::uint32_t kClosedBit = 1;
inline constexpr std::uint32_t kFencedBit = 2;
// Calls say what they are about to submit, and may have to wait until less is in flight (stream_calls.h).
inline constexpr std::uint32_t kMeteredBit = 4;
// Calls are counted by the GPU that they reach.
inline constexpr std::uint32_t kSortedBit = 8;
// The process has touched several GPUs.
inline constexpr std::uint32_t kSeveralBit = 16;

// One set of gates per process: globals, so that the fast path loads no pointer. Gate (gate.h) is their only writer.
[[gnu::visibility("hidden")]] extern constinit std::atomic<std::uint32_t> state;
// The same for calls that may reach other GPUs than their stream's; with kSeveralBit: such a call has to be noticed
// even if all gates are open, since its work on one GPU uses memory of another, which must not be evicted meanwhile.
[[gnu::visibility("hidden")]] extern constinit std::atomic<std::uint32_t> state_across;
// GPUs some of whose memory is evicted, or is about to move. Set only while their gates are closed.
[[gnu::visibility("hidden")]] extern constinit std::atomic<Devices> out_of_place;
// The error that every call returns at the closed gate because this process's memory is lost and the gate will never
// open again. CUDA_SUCCESS: calls wait.
[[gnu::visibility("hidden")]] extern constinit std::atomic<api::CUresult> refusal;
// initial-exec: one load relative to the thread pointer. Eight bytes of the surplus that glibc keeps for dlopened
// libraries; the global-dynamic model would call __tls_get_addr on every launch.
[[gnu::tls_model("initial-exec"), gnu::visibility("hidden")]] extern constinit thread_local Thread* self;

// Never null. If the allocation fails: a shared record that the closer ignores, after Attendant::unseen().
Thread* register_this_thread();
// What is the same in every call of a function: in one register.
struct Site {
  Symbol symbol;
  bool has_stream;
  bool per_thread;
  driver::Reaches reaches;
};
// Returns once the call may continue, with this thread's word raised: that word; or kRefused. `frame`: where that of
// the scope's function begins. By value: a reference would make every call store its Call to memory, for nothing.
inline constexpr std::uint64_t kRefused = UINT64_MAX;
std::uint64_t enter_watched(Thread& thread, const void* frame, Site site, api::CUstream stream, const void* first,
                            const void* second);
// The thread's word is raised. If the scopes that raised it have been left without their destructors (siglongjmp out of
// the driver's call), lowers it and returns true. `frame`: where that of a function which has no such scope itself
// begins.
[[gnu::cold]] bool forget_left(Thread& thread, const void* frame);

class Scope {
 public:
  [[gnu::always_inline]] explicit Scope(const driver::Call& call) {
    thread_ = self;
    if (thread_ == nullptr) [[unlikely]]
      thread_ = register_this_thread();
    const std::uint64_t before = thread_->word.load(std::memory_order_relaxed);
    raised_ = before + kEnter;
    if ((before & kDepthMask) == 0) [[likely]]
      thread_->outermost.store(__builtin_dwarf_cfa(), std::memory_order_relaxed);
    thread_->word.store(raised_, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // keeps only the compiler from reordering the two
    const std::atomic<std::uint32_t>& seen = call.reaches == driver::Reaches::kNoOther ? state : state_across;
    if (seen.load(std::memory_order_acquire) != kOpen) [[unlikely]] {
      const std::uint64_t entered = enter_watched(*thread_, __builtin_dwarf_cfa(),
                                                  Site{call.symbol, call.has_stream, call.per_thread, call.reaches},
                                                  call.stream, call.first, call.second);
      refused_ = entered == kRefused;
      if (!refused_) raised_ = entered;
    }
  }
  // The call must not be made: it returns `refusal`. Known to be false where the gate was found open.
  [[gnu::always_inline]] bool refused() const { return refused_; }
  // Not read again: that would wait for the store above to be forwarded, a nanosecond and a half. What a scope inside
  // this one has counted since is lost, which does no harm; and so is the GPU that enter_watched() has noted.
  [[gnu::always_inline]] ~Scope() { thread_->word.store(raised_ + kLeave, std::memory_order_release); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Thread* thread_;
  std::uint64_t raised_;
  bool refused_ = false;
};

// Memory that is in place stays there while this lives; a MappingScope inside it waits for nothing. The caller checks
// `out_of_place` next.
class HeldInPlace {
 public:
  [[gnu::always_inline]] HeldInPlace() : thread_(self != nullptr ? self : register_this_thread()) {
    if ((thread_->word.load(std::memory_order_relaxed) & kDepthMask) == 0)
      thread_->outermost.store(__builtin_dwarf_cfa(), std::memory_order_relaxed);
    thread_->word.fetch_add(kEnterMapping, std::memory_order_seq_cst);
  }
  ~HeldInPlace() { thread_->word.fetch_sub(kEnterMapping, std::memory_order_seq_cst); }
  HeldInPlace(const HeldInPlace&) = delete;
  HeldInPlace& operator=(const HeldInPlace&) = delete;

 private:
  Thread* thread_;
};

// The driver has refused a call of this thread, which has left the gate, because it is out of memory. Waits until
// others have evicted memory, at most until all of them have yielded the GPU, and calls `again`, which returns whether
// the driver no longer refuses the call.
[[gnu::cold]] void make_room(FunctionRef<bool()> again);

// Some gate is closed, and this thread's word is raised for a call that only holds memory in place: returns at once if
// all memory that it may access is in place, otherwise once those gates are open. Returns the raised word, or kRefused.
// If `known`, that is the memory at the addresses `first` and `second` only; null: none.
[[gnu::cold]] std::uint64_t hold_slowly(Thread& thread, const void* frame, bool known, const void* first,
                                        const void* second);
// Returns once nothing is out of place on any GPU, with the gates open where anything was. False: it is refused.
bool wait_in_place();

// Around a call that examines device addresses, or records them, without submitting. Before memory moves, the gate is
// closed and no thread is inside; a thread with such a scope counts as inside, so no memory moves during its call. At a
// closed gate the call continues unless memory is out of place: then it waits as a submission does. The idle detection
// ignores it, since nothing was submitted.
//
// It cannot block a close forever: calls that wait for other processes or run the program's own code are not wrapped in
// one, and calls that wait for the GPU (a few do, when they change a mapping) are like a synchronous copy inside the
// gate, which a drain can handle.
class MappingScope {
 public:
  // The call may examine any memory.
  [[gnu::always_inline]] MappingScope() : MappingScope(false, nullptr, nullptr) {}
  // The call examines the memory at these addresses only; null: none.
  [[gnu::always_inline]] explicit MappingScope(const void* first, const void* second = nullptr)
      : MappingScope(true, first, second) {}

  [[gnu::always_inline]] bool refused() const { return refused_; }
  [[gnu::always_inline]] ~MappingScope() { thread_->word.store(before_, std::memory_order_release); }
  MappingScope(const MappingScope&) = delete;
  MappingScope& operator=(const MappingScope&) = delete;

 private:
  [[gnu::always_inline]] MappingScope(bool known, const void* first, const void* second) {
    thread_ = self;
    if (thread_ == nullptr) [[unlikely]]
      thread_ = register_this_thread();
    before_ = thread_->word.load(std::memory_order_relaxed);
    if ((before_ & kDepthMask) == 0) [[likely]]
      thread_->outermost.store(__builtin_dwarf_cfa(), std::memory_order_relaxed);
    thread_->word.store(before_ + kEnterMapping, std::memory_order_relaxed);
    // The driver must not examine an address before the word is raised: the closer's membarrier or a locked instruction
    // ensures that.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (state.load(std::memory_order_acquire) != kOpen) [[unlikely]] {
      const std::uint64_t held = hold_slowly(*thread_, __builtin_dwarf_cfa(), known, first, second);
      refused_ = held == kRefused;
      if (!refused_) before_ = held - kEnterMapping;
    }
  }

  Thread* thread_;
  std::uint64_t before_;
  bool refused_ = false;
};

}  // namespace rota::gate
