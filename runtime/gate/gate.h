// The gates in front of the GPUs, one for each: open while this process holds the lease (or no rotad serves it), closed
// otherwise. A call waits at the gates of the GPUs that it reaches; while all are open, those GPUs are not looked up.
//
// Closing is the rare side: set the closed bit; membarrier, so that each thread has either shown its raised word or
// will see the bit; then wait until no word is raised. Between the two a thread can be inside, but not unnoticed: so
// "check, then launch" acts as a single step. Closing can be revoked at any moment by open().
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/core/function_ref.h"
#include "runtime/core/waiters.h"
#include "runtime/gate/scope.h"

namespace rota::gate {

// What the gate asks while a thread waits in front of it. Called on the program's threads, with no lock held.
class Attendant {
 public:
  virtual ~Attendant() = default;
  // A thread has found the gate closed and is about to wait: wakes whatever can get the lease.
  virtual void arrived() = 0;
  // A signal handler has run in a thread that waits at this GPU's gate. The program reacts to it (Python raises
  // KeyboardInterrupt) only once the call has returned. Called while the gate is closed, under the gate's mutex.
  virtual void interrupted(int /*device*/) {}
  // The GPUs that a call reaches, asked where the gates of several GPUs differ; and the GPUs of the memory at these
  // addresses. May call the driver.
  virtual Devices reached(const driver::Call& /*call*/) { return kAllDevices; }
  // The same if that costs next to nothing, for a call that does not matter to a capture; 0: it costs more.
  virtual Devices reached_at_once(const driver::Call& /*call*/) { return 0; }
  virtual Devices reached(const void* /*first*/, const void* /*second*/) { return kAllDevices; }
  // A call reaches all of these GPUs: their gates have to be open at the same time. Not called for every call that
  // finds all gates open.
  virtual void couples(Devices /*devices*/) {}
  // Whether the call puts no work on the GPU after all (its stream is being captured) and so needs neither the lease
  // nor memory that is out of place.
  virtual bool submits_nothing(const driver::Call& call) = 0;
  // While the gate is metered: whether this call may continue at once. If not, its thread waits until resume().
  virtual bool may_submit(const driver::Call& /*call*/) { return true; }
  // make_room() of scope.h, for a thread that is not inside the gate.
  virtual void make_room(FunctionRef<bool()> /*again*/) {}
  // The thread has waited this long. Called when it begins to wait (0), and again after each time that this returns; if
  // it returns nothing, not again.
  virtual std::optional<std::chrono::nanoseconds> stands(std::chrono::nanoseconds /*so_long*/) { return std::nullopt; }
  // There was no memory for a thread's record, so the closer cannot see that thread: no memory may move any more.
  // Called before each call of such a thread.
  virtual void unseen() {}
};

// Called each time that a thread begins to wait in front of the gate (nothing), and when it has waited (for how long),
// on that thread. May be null.
using Stood = void(std::optional<std::chrono::nanoseconds>);
void tell_of_waits(Stood* stood);
// Tells so of a wait of this thread for other programs, for as long as this lives. Not within another one.
class ToldWait {
 public:
  ToldWait();
  ~ToldWait();
  ToldWait(const ToldWait&) = delete;
  ToldWait& operator=(const ToldWait&) = delete;
  std::chrono::steady_clock::time_point begun() const { return begun_; }

 private:
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

enum class Barrier { kBest, kFenced };  // kFenced: as if the kernel had no membarrier (tests)

class Gate {
 public:
  // At most one at a time: it owns the globals of scope.h. All gates start open.
  explicit Gate(Barrier barrier = Barrier::kBest);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Must outlive the gate or be replaced by null. Null: every call waits at a closed gate.
  void set_attendant(Attendant* attendant) { attendant_.store(attendant, std::memory_order_release); }
  // From now on only the gates of the GPUs named here count, which the process has touched. As long as none is named,
  // all count.
  void count(Devices devices);

  // After it returns, no thread enters that reaches these GPUs and is not inside already, except for calls that submit
  // nothing. Only one thread closes (the client's monitor).
  void close(Devices devices = kAllDevices);
  // Waits until no thread is inside that may reach these GPUs. False if `deadline` passed first. Only after close(), by
  // the same thread.
  bool wait_until_empty(std::chrono::steady_clock::time_point deadline, Devices devices = kAllDevices);
  // Lets threads go that wait at these gates. Any thread.
  void open(Devices devices = kAllDevices);
  // Lets one call in although the gates are closed: one that waits, or the next that comes. Only one that reaches no
  // other closed gate, and whose memory is in place. Until a thread has taken it traffic() counts it as inside, and
  // wait_until_empty() waits; then the thread itself is inside. close() and open() take it back. The closer's thread.
  void admit(Devices devices = kAllDevices);
  // Withdraws that: no further call is let in.
  void withdraw(Devices devices = kAllDevices);
  // The same for all, and close() does nothing from then on: no rotad serves this process, or it is exiting.
  void open_for_good();
  // All threads that wait at these gates, and those that reach one while it is closed, return this error. Permanent.
  void refuse(api::CUresult error);
  // Returns once these gates are open or refuse; the thread waits until then.
  void pass(Devices devices = kAllDevices);
  // Whether calls ask the attendant if they may be submitted from now on. Any thread.
  void set_metered(bool metered);
  bool metered() const { return (state.load(std::memory_order_acquire) & kMeteredBit) != 0; }
  // Whether calls are counted by the GPU that they reach from now on.
  void set_sorted(bool sorted);
  bool sorted() const { return (state.load(std::memory_order_acquire) & kSortedBit) != 0; }
  // Lets all threads that the attendant made wait ask again.
  void resume();
  // These gates are about to open: one of the waiting threads spins for it, at most until then.
  void rouse(std::chrono::steady_clock::time_point until, Devices devices = kAllDevices);
  // How many threads the attendant has made wait, for GPUs among these.
  std::uint32_t held_up(Devices devices = kAllDevices) const { return count(held_, devices); }
  // Whether any of these gates is closed, of those that count.
  bool closed(Devices devices = kAllDevices) const {
    return counted(closed_.load(std::memory_order_acquire) & devices) != 0;
  }
  bool all_closed(Devices devices) const { return (devices & ~closed_.load(std::memory_order_acquire)) == 0; }

  // Runs `work` inside the gate of a GPU if it is open, and returns whether it did; never waits. For rota's own work
  // (prefetches) on the program's threads.
  bool run_if_open(int device, FunctionRef<void()> work);

  // Threads that wait in front of these gates, each counted at the first gate that it waits at.
  std::uint32_t standing(Devices devices = kAllDevices) const { return count(outside_, devices); }
  // Threads of the program that have made a gated call or registered, and have not ended.
  static std::uint32_t threads_of_program();
  struct Traffic {
    std::uint64_t calls;   // calls that have left since the process began
    std::uint32_t inside;  // threads inside now
  };
  // Of calls that may reach these GPUs. Where calls are sorted, those of others are left out of both; a number that
  // changes means calls, and no more.
  Traffic traffic(Devices devices = kAllDevices) const;
  bool fenced() const { return fenced_; }

 private:
  friend void make_room(FunctionRef<bool()> again);
  friend std::uint64_t enter_watched(Thread& thread, const void* frame, Site site, api::CUstream stream,
                                     const void* first, const void* second);
  friend std::uint64_t hold_slowly(Thread& thread, const void* frame, bool known, const void* first,
                                   const void* second);
  friend bool wait_in_place();
  friend Thread* register_this_thread();
  using PerDevice = std::array<Waiters, kMaxDevices>;
  Devices counted(Devices devices) const;
  Devices some() const;
  std::uint32_t count(const PerDevice& waiters, Devices devices) const;
  void wake(PerDevice& waiters, Devices devices);
  template <typename Reached>
  Devices reached(const Reached& ask) const;
  [[gnu::cold]] static std::uint64_t enter_slowly(Thread& thread, const void* frame, Site site, api::CUstream stream,
                                                  const void* first, const void* second);
  static std::uint64_t enter_at_once(Thread& thread, Site site, api::CUstream stream, const void* first,
                                     const void* second);
  static void show_closed(Devices closed, Devices counted);
  static void set(std::uint32_t bits);
  static void clear(std::uint32_t bits);
  bool wait_outside(Devices devices, bool interrupted, bool admissible);
  bool wait_awake(int device, const HeldSignals& signals, std::unique_lock<std::mutex>& lock,
                  FunctionRef<bool()> waits);
  void forget_admissions(Devices devices);
  bool admits(Devices devices) const;
  std::atomic<Devices>* admission_for(Devices closed);
  bool takes_admission(Devices closed);
  bool may_submit(const driver::Call& call) const;
  bool wait_metered(Devices devices, std::uint64_t resumed);
  // Waits, and meanwhile calls the attendant, if there is one. `may_go` and `interrupted` are those of Waiters::wait().
  template <typename MayGo, typename Interrupted>
  void stand(Waiters& waiters, Waiters::Place& place, Attendant* attendant, MayGo may_go, Interrupted interrupted);

  std::mutex mutex_;
  PerDevice outside_;  // in front of the closed gates,
  PerDevice held_;     // threads that the attendant has made wait
  bool for_good_ = false;
  std::atomic<Devices> closed_{0};
  // For which GPUs one call is let in: each at the first of them; 0: none. Made and withdrawn under the mutex.
  std::array<std::atomic<Devices>, kMaxDevices> admissions_{};
  std::atomic<Devices> counted_{0};  // 0: all
  std::chrono::steady_clock::time_point roused_until_{};
  Devices roused_ = 0;
  // One of them spins, at most until then (wait_awake).
  std::chrono::steady_clock::time_point awake_until_{};
  std::atomic<Attendant*> attendant_{nullptr};
  std::atomic<std::uint64_t> resumed_{0};  // how often they were told to ask again
  bool fenced_ = false;
};

// From now on the calling thread never waits at the gate: it is rota's own thread, which opens the gate. Other code
// runs on it, too: a profiler's callbacks in the driver's functions that it calls.
void exempt_this_thread();

// Whether the calling thread is inside (a call that it has left without returning does not count): the closer waits for
// it, so it must not wait for anything that needs the gate closed. Nor must a thread that is exempt.
inline bool may_not_wait() {
  if (self == nullptr) return false;
  if (self->exempt) return true;
  if ((self->word.load(std::memory_order_relaxed) & kDepthMask) == 0) return false;
  // Only scopes below the frame of the function that asks, which may itself be the one with the scope.
  return !forget_left(*self, static_cast<const char*>(__builtin_dwarf_cfa()) - 1);
}

// In the child of a fork, before it creates its own gate: forgets the parent's other threads and its gate, which
// another thread may have been changing. Takes no lock; the list of threads is consistent at any moment.
void forget_other_threads();

}  // namespace rota::gate
