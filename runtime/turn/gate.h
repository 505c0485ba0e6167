// The gate in front of the GPU: open while this process holds the lease (or no rotad serves it), closed otherwise.
//
// Closing is the rare side: set the closed bit; membarrier, so that each thread has either shown its raised word or
// will see the bit; then wait until no word is raised. Between the two a thread can be inside, but not unnoticed: so
// "check, then launch" acts as a single step. Closing can be revoked at any moment by open().
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/core/function_ref.h"
#include "runtime/turn/scope.h"
#include "runtime/turn/waiters.h"

namespace rota::gate {

// What the gate asks while a thread stands in front of it. Called on the program's threads, with no lock held.
class Attendant {
 public:
  virtual ~Attendant() = default;
  // A thread has found the gate closed and is about to wait: wakes whatever can get the lease.
  virtual void arrived() = 0;
  // A signal handler has run in a waiting thread. The program reacts to it (Python raises KeyboardInterrupt) only once
  // the call has returned. Called while the gate is closed, under the gate's mutex.
  virtual void interrupted() {}
  // Whether the call puts no work on the GPU after all (its stream is being captured) and so needs neither the lease
  // nor memory that is out of place.
  virtual bool submits_nothing(const Call& call) = 0;
  // While the gate is metered: whether this call may continue at once. If not, its thread waits until resume().
  virtual bool may_submit(const Call& /*call*/) { return true; }
  // make_room() of scope.h, for a thread that is not inside the gate.
  virtual void make_room(FunctionRef<bool()> /*again*/) {}
  // The thread has waited this long. Called when it begins to wait (0), and again after each time that this returns;
  // nothing: not again.
  virtual std::optional<std::chrono::nanoseconds> stands(std::chrono::nanoseconds /*so_long*/) { return std::nullopt; }
  // There was no memory for a thread's record, so the closer cannot see that thread: no memory may move any more.
  // Called before each call of such a thread.
  virtual void unseen() {}
};

// Called each time that a thread begins to wait in front of the gate (nothing), and when it has waited (for how long),
// on that thread. May be null.
using Stood = void(std::optional<std::chrono::nanoseconds>);
void tell_of_waits(Stood* stood);

enum class Barrier { kBest, kFenced };  // kFenced: as if the kernel had no membarrier (tests)

class Gate {
 public:
  // At most one at a time: it owns the globals of scope.h. Starts open.
  explicit Gate(Barrier barrier = Barrier::kBest);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Must outlive the gate or be replaced by null; null: closed means wait, whatever the call.
  void set_attendant(Attendant* attendant) { attendant_.store(attendant, std::memory_order_release); }

  // After it returns, no thread enters that is not inside already, except for calls that submit nothing. Only one
  // thread closes (the client's monitor).
  void close();
  // Waits until no thread is inside. False if `deadline` passed first. Only after close(), by the same thread.
  bool wait_until_empty(std::chrono::steady_clock::time_point deadline);
  // Lets every waiting thread go. Any thread.
  void open();
  // The same, and close() does nothing from then on: no rotad serves this process, or it is exiting.
  void open_for_good();
  // All threads that wait at the gate, and those that reach it while it is closed, return this error. Permanent.
  void refuse(api::CUresult error);
  // Returns once the gate is open or refuses; the thread waits until then.
  void pass();
  // Whether calls ask the attendant if they may be submitted from now on. Any thread.
  void set_metered(bool metered);
  bool metered() const { return (state.load(std::memory_order_acquire) & kMeteredBit) != 0; }
  // Lets all threads that the attendant made wait ask again.
  void resume();
  // The gate is about to open: one of the waiting threads spins for it, at most until then.
  void rouse(std::chrono::steady_clock::time_point until);
  // How many threads the attendant has made wait.
  std::uint32_t held_up() const { return held_.count(); }
  bool closed() const { return (state.load(std::memory_order_acquire) & kClosedBit) != 0; }

  // Runs `work` inside the gate if it is open, and returns whether it did; never waits. For rota's own work
  // (prefetches) on the program's threads.
  bool run_if_open(FunctionRef<void()> work);

  // Threads that wait in front of the closed gate.
  std::uint32_t standing() const { return outside_.count(); }
  struct Traffic {
    std::uint64_t calls;   // calls that have left since the process began
    std::uint32_t inside;  // threads inside now
  };
  Traffic traffic() const;
  bool fenced() const { return fenced_; }

 private:
  friend void make_room(FunctionRef<bool()> again);
  friend std::uint64_t enter_slowly(Thread& thread, const void* frame, Symbol symbol, api::CUstream stream,
                                    bool has_stream, bool per_thread);
  friend std::uint64_t hold_slowly(Thread& thread, const void* frame);
  friend Thread* register_this_thread();
  bool wait_outside(bool interrupted = false);
  bool wait_awake(const HeldSignals& signals, std::unique_lock<std::mutex>& lock);
  bool may_submit(const Call& call) const;
  bool wait_metered(std::uint64_t resumed);
  // Waits, and meanwhile calls the attendant, if there is one. `may_go` and `interrupted` are those of Waiters::wait().
  template <typename MayGo, typename Interrupted>
  void stand(Waiters& waiters, Waiters::Place& place, Attendant* attendant, MayGo may_go, Interrupted interrupted);

  std::mutex mutex_;
  Waiters outside_;  // in front of the closed gate,
  Waiters held_;     // threads that the attendant has made wait
  bool for_good_ = false;
  std::chrono::steady_clock::time_point roused_until_{};
  // One of them spins, at most until then (wait_awake).
  std::chrono::steady_clock::time_point awake_until_{};
  std::atomic<Attendant*> attendant_{nullptr};
  std::atomic<std::uint64_t> resumed_{0};  // how often they were told to ask again
  bool fenced_ = false;
};

// From now on the calling thread waits for nothing at the gate: it is rota's own, which opens the gate. Code of others
// runs on it, too: a profiler's callbacks in the driver's functions that it calls.
void exempt_this_thread();

// Whether the calling thread is inside (a call that it has left without returning does not count): the closer waits for
// it, so it must not wait for anything that needs the gate closed. Nor must a thread that is exempt.
inline bool may_not_wait() {
  if (self == nullptr) return false;
  if (self->exempt) return true;
  if ((self->word.load(std::memory_order_relaxed) & kDepthMask) == 0) return false;
  // Below the frame of the function that asks, which may be the one with the scope.
  return !forget_left(*self, static_cast<const char*>(__builtin_dwarf_cfa()) - 1);
}

// In the child of a fork, before it creates its own gate: forgets the parent's other threads and its gate, which
// another thread may have been changing. Takes no lock; the list of threads is consistent at any moment.
void forget_other_threads();

}  // namespace rota::gate
