// The gate in front of the GPU: open while this process holds the lease (or no rotad serves it), closed otherwise.
//
// Closing is the rare side: set the closed bit; membarrier, so that each thread has either shown its raised word or
// will see the bit; then wait until no word is raised. Between the two a thread can be inside, never unseen: this is
// what makes "check, then launch" a single act (nvshare's fifth defect). Closing can be revoked at any moment by
// open().
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/turn/scope.h"
#include "runtime/turn/waiters.h"

namespace rota::gate {

// What the gate asks while a thread stands in front of it. Called on the program's threads, with no lock held.
class Attendant {
 public:
  virtual ~Attendant() = default;
  // A thread has found the gate closed and is about to wait; whoever can get the lease should be woken.
  virtual void arrived() = 0;
  // A signal handler has run in a thread that waits: what the program is to do about it (Python ends by a
  // KeyboardInterrupt) it does once the call has returned. While the gate is closed, under the gate's mutex.
  virtual void interrupted() {}
  // Whether the call puts no work on the GPU after all (its stream is being captured) and so needs no lease, nor any
  // memory that is out of place.
  virtual bool submits_nothing(const Call& call) = 0;
  // While the gate is metered: whether this call may go on at once. If not, its thread waits until resume().
  virtual bool may_submit(const Call& /*call*/) { return true; }
  // make_room() of scope.h, for a thread that is not inside the gate.
  virtual void make_room(const std::function<bool()>& /*again*/) {}
  // There was no memory for a thread's record, so the closer cannot see that thread: nothing may move any more. Before
  // each call of such a thread.
  virtual void unseen() {}
};

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

  // From its return on, no thread enters that is not inside already, but for calls that submit nothing. Only one thread
  // closes (the client's monitor).
  void close();
  // Waits until no thread is inside. False if `deadline` passed first. Only after close(), by the same thread.
  bool wait_until_empty(std::chrono::steady_clock::time_point deadline);
  // Lets every waiting thread go. Any thread.
  void open();
  // The same, and close() does nothing from then on: no rotad serves this process, or it is exiting.
  void open_for_good();
  // Whoever stands in front of it, and whoever comes to it closed, is answered this error and goes. For good.
  void refuse(api::CUresult error);
  // Returns once the gate is open, or refuses: the thread stands at it until then.
  void pass();
  // From now on calls ask the attendant whether they may be submitted, or no more. Any thread.
  void set_metered(bool metered);
  bool metered() const { return (state.load(std::memory_order_acquire) & kMeteredBit) != 0; }
  // Lets everybody ask again whom the attendant has made wait.
  void resume();
  // The gate is about to open: one of those who stand there waits awake for it, until then at most.
  void rouse(std::chrono::steady_clock::time_point until);
  // How many those are.
  std::uint32_t held_up() const { return held_up_.load(std::memory_order_acquire); }
  bool closed() const { return (state.load(std::memory_order_acquire) & kClosedBit) != 0; }

  // Runs `work` inside the gate if that is open, else not, and says which; never waits. For work of rota's own
  // (prefetches) on the program's threads.
  bool run_if_open(const std::function<void()>& work);

  // Threads that wait in front of the closed gate.
  std::uint32_t standing() const { return standing_.load(std::memory_order_acquire); }
  struct Traffic {
    std::uint64_t calls;   // calls that have left since the process began
    std::uint32_t inside;  // threads inside now
  };
  Traffic traffic() const;
  bool fenced() const { return fenced_; }

 private:
  friend void make_room(const std::function<bool()>& again);
  friend bool enter_slowly(Thread& thread, Symbol symbol, api::CUstream stream, bool has_stream, bool per_thread);
  friend bool hold_slowly(Thread& thread);
  friend Thread* register_this_thread();
  void wait_outside(bool interrupted = false);
  void wait_awake(std::unique_lock<std::mutex>& lock);
  bool may_submit(const Call& call) const;
  bool wait_metered(std::uint64_t resumed);

  std::mutex mutex_;
  Waiters outside_;  // in front of the closed gate,
  Waiters held_;     // and those whom the attendant has made wait
  bool for_good_ = false;
  std::chrono::steady_clock::time_point roused_until_{};
  bool awake_ = false;  // one of them is
  std::atomic<Attendant*> attendant_{nullptr};
  std::atomic<std::uint32_t> standing_{0};
  std::atomic<std::uint32_t> held_up_{0};
  std::atomic<std::uint64_t> resumed_{0};  // how often they have been let ask again
  bool fenced_ = false;
};

// Whether the calling thread is inside: who closes waits for it, so it must wait for nothing that needs the gate
// closed.
inline bool is_inside() {
  return self != nullptr && (self->word.load(std::memory_order_relaxed) & kDepthMask) != 0;
}

// In the child of a fork, before it makes a gate of its own: forgets the parent's other threads and its gate, which
// another thread may have been changing. Takes no lock; the list of threads is whole at any moment.
void forget_other_threads();

}  // namespace rota::gate
