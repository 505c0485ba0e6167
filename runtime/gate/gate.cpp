// The gates' slow side: closing, and entering where one is closed. scope.h has the fast path, gate.h the protocol, and
// gate_waiting.cpp what waiting threads do.
#include "runtime/gate/gate.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <thread>

#include "runtime/core/own_tid.h"
#include "runtime/driver/stream.h"
#include "runtime/gate/thread_records.h"

namespace rota::gate {

constinit std::atomic<std::uint32_t> state{kOpen};
constinit std::atomic<std::uint32_t> state_across{kOpen};
constinit std::atomic<Devices> out_of_place{0};
constinit std::atomic<api::CUresult> refusal{api::CUDA_SUCCESS};

namespace {

using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

long membarrier(int command) {
  return syscall(SYS_membarrier, command, 0, 0);
}

bool register_membarrier() {
  return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 &&
         membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0;
}

// forget_left() for a scope of this thread which has raised the word by `own` itself.
void forget_left_before(Thread& thread, const void* frame, std::uint64_t own) {
  if (depth_of_own(thread) == own || &thread == &no_memory || !forget_left(thread, frame)) return;
  thread.outermost.store(frame, memory_order_relaxed);
  thread.word.fetch_add(own, memory_order_seq_cst);
}

// A thread that waits is not inside. Handlers of signals run in it meanwhile, and may make calls of their own. A
// handler may also throw: then the scope that waits, which has raised the word by `own`, is never made, and nobody
// would lower it again.
class Lowered {
 public:
  Lowered(Thread& thread, std::uint64_t inside, std::uint64_t own)
      : thread_(thread),
        inside_(inside),
        own_(std::min(inside, own)),
        outermost_(thread.outermost.load(memory_order_relaxed)) {
    thread_.word.fetch_sub(inside_, memory_order_seq_cst);
  }
  ~Lowered() {
    thread_.outermost.store(outermost_, memory_order_relaxed);
    thread_.word.fetch_add(over_ ? inside_ : inside_ - own_, memory_order_seq_cst);
  }
  // The wait has ended by returning.
  void over() { over_ = true; }
  Lowered(const Lowered&) = delete;
  Lowered& operator=(const Lowered&) = delete;

 private:
  Thread& thread_;
  std::uint64_t inside_;
  std::uint64_t own_;
  const void* outermost_;
  bool over_ = false;
};

// The thread enters, and reaches these GPUs. Returns its word without the GPU, as the scope needs it to leave.
std::uint64_t inside_of(Thread& thread, Devices reached) {
  const std::uint64_t word = word_of(thread);
  if (!is_one(reached) || &thread == &no_memory || (word & kDepthMask) != kEnter) return word;
  const int device = std::countr_zero(reached);
  // Only this thread writes it, so that this needs no locked instruction.
  std::atomic<std::uint64_t>& calls = thread.sorted[static_cast<std::size_t>(device)];
  calls.store(calls.load(memory_order_relaxed) + 1, memory_order_relaxed);
  thread.word.store(word | static_cast<std::uint64_t>(device + 1) << kDeviceShift, memory_order_release);
  return word;
}

Devices reached_at_once(Thread& thread, Attendant& attendant, const driver::Call& call) {
  if (call.reaches != driver::Reaches::kNoOther || !call.has_stream || driver::of_current_context(call.stream)) {
    return attendant.reached_at_once(call);
  }
  const std::uint64_t as_of = driver::handles_ended.load(memory_order_acquire);
  if (thread.last.handle != call.stream || thread.last.as_of != as_of) {
    const Devices device = attendant.reached_at_once(call);
    thread.last = device != 0 ? Thread::Last{call.stream, as_of, device} : Thread::Last{};
  }
  return thread.last.device;
}

}  // namespace

std::uint64_t enter_watched(Thread& thread, const void* frame, Site site, api::CUstream stream, const void* first,
                            const void* second) {
  const std::uint64_t word = Gate::enter_at_once(thread, site, stream, first, second);
  return word != 0 ? word : Gate::enter_slowly(thread, frame, site, stream, first, second);
}

// What enter_slowly() does with a call of one GPU whose gate is open, if it is no call inside another. Returns 0 if the
// call may be of another kind.
std::uint64_t Gate::enter_at_once(Thread& thread, Site site, api::CUstream stream, const void* first,
                                  const void* second) {
  const std::uint32_t now =
      (site.reaches == driver::Reaches::kNoOther ? state : state_across).load(memory_order_acquire);
  Gate* const gate = the_gate.load(memory_order_acquire);
  if ((now & kFencedBit) != 0 || (word_of(thread) & kDepthMask) != kEnter || gate == nullptr) return 0;
  Attendant* const attendant = gate->attendant_.load(memory_order_acquire);
  if (attendant == nullptr || &thread == &no_memory || thread.exempt || out_of_place.load(memory_order_seq_cst) != 0) {
    return 0;
  }
  const driver::Call call{site.symbol, stream, site.has_stream, site.per_thread, site.reaches, first, second};
  const Devices counted = gate->counted_.load(memory_order_seq_cst);
  const Devices reached = is_one(counted) ? counted : reached_at_once(thread, *attendant, call);
  const bool one = is_one(reached) && (reached & ~counted) == 0;
  if (!one || (gate->closed_.load(memory_order_seq_cst) & reached) != 0) return 0;
  if ((now & kMeteredBit) != 0 && !attendant->may_submit(call)) return 0;
  return inside_of(thread, reached);
}

std::uint64_t Gate::enter_slowly(Thread& thread, const void* frame, Site site, api::CUstream stream, const void* first,
                                 const void* second) {
  const driver::Call call{site.symbol, stream, site.has_stream, site.per_thread, site.reaches, first, second};
  bool interrupted = false;
  for (;;) {
    const std::atomic<std::uint32_t>& all = site.reaches == driver::Reaches::kNoOther ? state : state_across;
    std::uint32_t now = all.load(memory_order_acquire);
    if ((now & kFencedBit) != 0) {
      // Where no closer makes the threads pass a barrier (scope.h): with the fence, all of them see the store of the
      // word and the load of the state in one order.
      thread.word.fetch_add(0, memory_order_seq_cst);
      now = all.load(memory_order_seq_cst);
    }
    if ((now & ~kFencedBit) == 0 || thread.exempt) return word_of(thread);
    forget_left_before(thread, frame, kEnter);
    // A call inside a call: the outer one is already counted, and the closer waits for it. Waiting here would mean
    // waiting for ourselves.
    const std::uint64_t inside = depth_of_own(thread);
    if ((inside & kSubmittingMask) > 1) return word_of(thread);
    Gate* gate = the_gate.load(memory_order_acquire);
    if (gate == nullptr) return word_of(thread);
    const Devices counted = gate->counted(kAllDevices);
    const Devices reached = gate->reached([&](Attendant& attendant) { return attendant.reached(call); });
    Attendant* attendant = gate->attendant_.load(memory_order_acquire);
    const Devices closed = gate->closed_.load(memory_order_seq_cst) & reached;
    // Only after the word is raised: while the thread is inside, none of these GPUs is found to be at rest. Not for the
    // first call that is seen of its GPU: which GPUs there are has just changed.
    const bool across = std::popcount(reached) > 1 && gate->counted(kAllDevices) == counted;
    if (attendant != nullptr && across) attendant->couples(reached);
    if (closed == 0) {
      if ((now & kMeteredBit) == 0 || gate->may_submit(call)) return inside_of(thread, reached);
      const std::uint64_t resumed = gate->resumed_.load(memory_order_acquire);
      // Ask once more, since the answer may be different by now.
      if (gate->may_submit(call)) return inside_of(thread, reached);
      Lowered lowered(thread, inside, kEnter);
      interrupted |= gate->wait_metered(reached, resumed);
      lowered.over();
      continue;
    }
    if (refuses()) return kRefused;
    if (attendant != nullptr && attendant->submits_nothing(call)) return word_of(thread);
    // The call may be the first one seen of its GPU.
    if (gate->counted(kAllDevices) != counted) continue;
    // The closer does not see a thread without a record: it would take the gate for empty.
    const bool seen = &thread != &no_memory;
    // The word is raised already, so the closer finds either the admission or this thread.
    if (seen && gate->takes_admission(closed)) return inside_of(thread, reached);
    // Lower all of it, even if this is a profiler's callback within a call that only holds memory in place: that call
    // does not continue before this one returns, and when the gate opens everything is where it was.
    Lowered lowered(thread, inside, kEnter);
    interrupted = gate->wait_outside(closed, interrupted, seen);
    lowered.over();
  }
}

std::uint64_t hold_slowly(Thread& thread, const void* frame, bool known, const void* first, const void* second) {
  bool interrupted = false;
  for (;;) {
    // As in enter_slowly().
    thread.word.fetch_add(0, memory_order_seq_cst);
    const Devices out = out_of_place.load(memory_order_seq_cst);
    if ((state.load(memory_order_seq_cst) & kClosedBit) == 0 || out == 0) return word_of(thread);
    forget_left_before(thread, frame, kEnterMapping);
    // Inside another call nothing moves.
    const std::uint64_t inside = depth_of_own(thread);
    if ((inside != kEnterMapping && inside != 0) || thread.exempt) return word_of(thread);
    Gate* gate = the_gate.load(memory_order_acquire);
    if (gate == nullptr) return word_of(thread);
    const Devices looked_at =
        gate->reached([&](Attendant& attendant) { return known ? attendant.reached(first, second) : kAllDevices; });
    const Devices closed = gate->closed_.load(memory_order_seq_cst) & out & looked_at;
    if (closed == 0) return word_of(thread);
    if (refuses()) return kRefused;
    Lowered lowered(thread, inside, kEnterMapping);
    interrupted = gate->wait_outside(closed, interrupted, false);
    lowered.over();
  }
}

void exempt_this_thread() {
  Thread* const own = self != nullptr ? self : register_this_thread();
  if (own != &no_memory) own->exempt = true;
}

bool wait_in_place() {
  Gate* gate = the_gate.load(memory_order_acquire);
  for (;;) {
    const Devices out = out_of_place.load(memory_order_seq_cst);
    if (gate == nullptr || out == 0 || may_not_wait()) return true;
    if (refuses()) return false;
    gate->pass(out);
  }
}

void make_room(FunctionRef<bool()> again) {
  if (may_not_wait()) return;
  Gate* gate = the_gate.load(memory_order_acquire);
  Attendant* attendant = gate != nullptr ? gate->attendant_.load(memory_order_acquire) : nullptr;
  if (attendant != nullptr) attendant->make_room(again);
}

Gate::Gate(Barrier barrier) {
  fenced_ = barrier == Barrier::kFenced || !register_membarrier();
  make_thread_end_key();
  the_gate.store(this, memory_order_release);
  clear(~std::uint32_t{0});
  if (fenced_) set(kFencedBit);
}

Gate::~Gate() {
  the_gate.store(nullptr, memory_order_release);
  refusal.store(api::CUDA_SUCCESS, memory_order_seq_cst);
  clear(~std::uint32_t{0});
}

void Gate::set(std::uint32_t bits) {
  state.fetch_or(bits & ~kSeveralBit, memory_order_seq_cst);
  state_across.fetch_or(bits, memory_order_seq_cst);
}

void Gate::clear(std::uint32_t bits) {
  state.fetch_and(~bits, memory_order_seq_cst);
  state_across.fetch_and(~bits, memory_order_seq_cst);
}

// Of these GPUs, those whose gates count.
Devices Gate::counted(Devices devices) const {
  const Devices all = counted_.load(memory_order_seq_cst);
  return all == 0 ? devices : devices & all;
}

// The GPUs that a call reaches, as far as that is worth knowing.
template <typename Reached>
Devices Gate::reached(const Reached& ask) const {
  const Devices all = counted(kAllDevices);
  if (std::popcount(all) == 1 || all == kAllDevices) return all;
  Attendant* attendant = attendant_.load(memory_order_acquire);
  if (attendant == nullptr) return all;
  // A GPU that the process has not touched, as far as is known: rota has not seen its context yet.
  const Devices named = ask(*attendant);
  return (named & ~all) != 0 && named != kAllDevices ? all | named : named & all;
}

// Under the mutex: what the fast path sees once these gates are closed, of those that count. It sees a gate closed
// before closed() says so: a thread that has allocated memory out of place behind the closed gate must not find it
// open.
void Gate::show_closed(Devices closed, Devices counted) {
  if ((closed & counted) != 0) {
    set(kClosedBit);
  } else {
    clear(kClosedBit);
  }
}

void Gate::count(Devices devices) {
  const std::lock_guard lock(mutex_);
  const Devices counted = counted_.load(memory_order_relaxed) | devices;
  show_closed(closed_.load(memory_order_relaxed), counted);
  counted_.store(counted, memory_order_seq_cst);
  if (std::popcount(counted) > 1) set(kSeveralBit);
}

void Gate::close(Devices devices) {
  {
    const std::lock_guard lock(mutex_);
    if (for_good_) return;
    show_closed(closed_.load(memory_order_relaxed) | devices, counted(kAllDevices));
    closed_.fetch_or(devices, memory_order_seq_cst);
    forget_admissions(devices);
    wake(held_, kAllDevices);  // calls that reach one of these wait at its closed gate from now on
  }
  if (fenced_) return;
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
  // membarrier was registered and tested but is refused now (a sandbox that was switched on later): from here on every
  // call is fenced. A call that read "open" just before may not be visible yet; a pause much longer than a store stays
  // in a store buffer rules that out.
  fenced_ = true;
  set(kFencedBit);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool Gate::wait_until_empty(std::chrono::steady_clock::time_point deadline, Devices devices) {
  auto pause = std::chrono::microseconds(5);
  // Admissions first: a thread that has taken one has raised its word before.
  while (admits(devices)) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
  }
  for (Thread* thread = threads.load(memory_order_acquire); thread != nullptr;) {
    if (!may_reach(thread->word.load(memory_order_seq_cst), devices)) {
      thread = thread->next;
      continue;
    }
    const pid_t tid = thread->tid.load(memory_order_acquire);
    if (tid != 0 && is_dead(tid)) {
      release_record(*thread);
      continue;
    }
    if (tid != 0 && has_left(*thread, tid)) continue;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    // Leaving the gate wakes nobody, so that it costs nothing: poll, at growing intervals.
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(500));
  }
  return true;
}

bool Gate::may_submit(const driver::Call& call) const {
  Attendant* attendant = attendant_.load(memory_order_acquire);
  return attendant == nullptr || attendant->may_submit(call);
}

void Gate::set_metered(bool metered) {
  if (metered) {
    set(kMeteredBit);
    return;
  }
  clear(kMeteredBit);
  resume();
}

void Gate::set_sorted(bool sorted) {
  if (sorted) {
    set(kSortedBit);
  } else {
    clear(kSortedBit);
  }
}

void Gate::resume() {
  const std::lock_guard lock(mutex_);
  resumed_.fetch_add(1, memory_order_seq_cst);
  wake(held_, kAllDevices);
}

void Gate::open(Devices devices) {
  const std::lock_guard lock(mutex_);
  closed_.fetch_and(~devices, memory_order_seq_cst);
  forget_admissions(devices);
  show_closed(closed_.load(memory_order_relaxed), counted(kAllDevices));
  wake(outside_, devices);
}

void Gate::open_for_good() {
  {
    const std::lock_guard lock(mutex_);
    for_good_ = true;
  }
  open();
}

void Gate::refuse(api::CUresult error) {
  const std::lock_guard lock(mutex_);
  refusal.store(error, memory_order_seq_cst);
  wake(outside_, kAllDevices);
}

bool Gate::run_if_open(int device, FunctionRef<void()> work) {
  const auto is_closed = [&] { return (closed_.load(memory_order_seq_cst) & bit_of(device)) != 0; };
  Thread* thread = self != nullptr ? self : register_this_thread();
  if (self == nullptr) {
    if (is_closed()) return false;
    work();
    return true;
  }
  if (depth_of_own(*thread) == 0) thread->outermost.store(__builtin_dwarf_cfa(), memory_order_relaxed);
  thread->word.fetch_add(kEnter, memory_order_seq_cst);
  if (is_closed()) {
    thread->word.fetch_sub(kEnter, memory_order_seq_cst);
    return false;
  }
  struct Inside {  // however the work ends
    explicit Inside(Thread& thread) : thread_(thread) {}
    ~Inside() { thread_.word.fetch_add(kLeave, memory_order_release); }
    Thread& thread_;
  } inside(*thread);
  work();
  return true;
}

std::uint32_t Gate::threads_of_program() {
  std::uint32_t count = 0;
  for (const Thread* thread = threads.load(memory_order_acquire); thread != nullptr; thread = thread->next) {
    if (thread->tid.load(memory_order_relaxed) != 0 && !thread->exempt.load(memory_order_relaxed)) ++count;
  }
  return count;
}

Gate::Traffic Gate::traffic(Devices devices) const {
  Traffic sum{0, admits(devices) ? 1U : 0U};  // first, as in wait_until_empty()
  const Devices others = counted_.load(memory_order_relaxed) & ~devices;
  for (const Thread* thread = threads.load(memory_order_acquire); thread != nullptr; thread = thread->next) {
    const std::uint64_t word = thread->word.load(memory_order_acquire);
    sum.calls += word >> kCallsShift;
    for (Devices rest = others; rest != 0; rest &= rest - 1) {
      sum.calls -= thread->sorted[static_cast<std::size_t>(std::countr_zero(rest))].load(memory_order_acquire);
    }
    if ((word & kDepthMask) == 0) continue;
    if (may_reach(word, devices)) {
      ++sum.inside;
    } else {
      ++sum.calls;  // as if it had left: it is in `sorted`
    }
  }
  return sum;
}

std::uint32_t Gate::count(const PerDevice& waiters, Devices devices) const {
  std::uint32_t sum = 0;
  for (Devices rest = devices & some(); rest != 0; rest &= rest - 1) {
    sum += waiters[static_cast<std::size_t>(std::countr_zero(rest))].count();
  }
  return sum;
}

// Under the mutex.
void Gate::wake(PerDevice& waiters, Devices devices) {
  for (Devices rest = devices & some(); rest != 0; rest &= rest - 1) {
    waiters[static_cast<std::size_t>(std::countr_zero(rest))].wake_all();
  }
}

// Where threads may wait: at the first gate as long as it is not known which GPUs there are.
Devices Gate::some() const {
  return counted_.load(memory_order_seq_cst) | 1;
}

void forget_other_threads() {
  the_gate.store(nullptr, memory_order_relaxed);
  out_of_place.store(0, memory_order_relaxed);
  refusal.store(api::CUDA_SUCCESS, memory_order_relaxed);
  const Thread* own = self;
  for (Thread* thread = threads.load(memory_order_acquire); thread != nullptr; thread = thread->next) {
    if (thread == own) {
      thread->tid.store(own_tid(), memory_order_relaxed);
    } else {
      release_record(*thread);
    }
  }
  state.store(kOpen, memory_order_seq_cst);
  state_across.store(kOpen, memory_order_seq_cst);
}

}  // namespace rota::gate
