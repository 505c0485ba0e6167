// What this process may take on each GPU, asked once before it is taken: what limits grant (those that it shares with
// others, and what others have there: scheduler/limits/quota.h), and, while it holds the GPU, what it was promised with
// its turn (scheduler/core/policy/admission.h). It also has the threads that ask for more and wait until they may take
// it.
//
// A thread reserves its bytes in the ledger, or for extents in the swap backend, then checks here whether they are
// covered; the monitor lowers a grant, or publishes the promise of a new turn, then reads the ledger. The stores and
// loads are in one total order, so one of the two notices: the thread asks or waits, or the monitor does not open the
// gate (machine.h).
//
// The two differ in what a thread may wait for. For limits, one thread at a time asks for what is not granted, and the
// answer depends on no GPU work: at worst it takes as long as others are given to say what they do not need. A promise
// may take others' turns, so a thread waits for it outside the gate. Without the lease there is no promise: none of
// this process's memory needs to be on the GPU, and its next turn covers what it has by then.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "runtime/client/bell.h"
#include "runtime/core/function_ref.h"
#include "runtime/core/waiters.h"
#include "runtime/memory/ledger.h"
#include "runtime/memory/residency.h"
#include "scheduler/protocol/protocol.h"

namespace rota::client {

class Budget {
 public:
  static constexpr std::uint64_t kUnlimited = protocol::kUnlimited;
  struct Bytes {
    std::uint64_t device = 0;   // in all
    std::uint64_t movable = 0;  // the part of it that can be evicted
    std::uint64_t fixed = 0;    // the part of it that cannot
    std::uint64_t swapped = 0;  // what extents take
  };

  // `patience`: how long rotad has to answer. It answers at once, at worst after a quarter of a second.
  Budget(memory::Residency& memory, Bell& bell, std::chrono::nanoseconds patience = std::chrono::seconds(5))
      : memory_(memory), ledger_(memory.ledger()), bell_(bell), patience_(patience) {}

  // --- the program's threads; `device` is below kMaxDevices

  // Whether limits allow bytes that are reserved in the ledger. Asks rotad if necessary. False: a limit is in the way,
  // and `release` has given them back. `for_others`, if not null, is set then: whether it is memory that others have
  // there, and may free.
  bool may_take(int device, std::uint64_t bytes, memory::Kind kind, FunctionRef<void()> release,
                bool* for_others = nullptr);
  // Whether limits allow what extents are about to take; `release` gives it back. `uncounted`: what will lie in them
  // and is not in the ledger yet, which is asked for at the same time.
  bool may_take_extents(int device, std::uint64_t bytes, std::uint64_t uncounted, FunctionRef<void()> release,
                        bool* for_others = nullptr);
  // Waits until the promise covers what the process has there. Lines say so after a while, with the text of `for_whom`,
  // which is called with no lock held.
  using ForWhom = FunctionRef<std::string()>;
  void wait_for_promise(int device, ForWhom for_whom) { wait_for_promise(device, nullptr, for_whom); }
  // Asks for the whole GPU, which has this many bytes, and waits until they are promised or nothing can forbid them any
  // more.
  void wait_for_all(int device, std::uint64_t bytes, ForWhom for_whom);
  // The process may have fewer bytes on the GPU than before.
  void changed();
  // The reservation of a thread that asks, and may be refused, possibly fills the ledger: returns when that thread has
  // its answer. False: no thread asks.
  bool wait_for_others(int device);
  // Logs one line, once, about what was refused last.
  void explain(int device);
  // Waits until rotad has said what the limits on this GPU are, at most a quarter of a second, and only the first time.
  // `afresh`: also what this process's contexts take there, measured after this call. False: rotad has not answered.
  bool wait_until_known(int device, bool afresh = false);
  // The part of the grant that the ledger does not use; kUnlimited where nothing is limited.
  std::uint64_t spare(int device) const;
  // The same with `left`, which rotad says is left beyond the grant, and with what has been given back since it said
  // so.
  std::uint64_t available(int device, std::uint64_t left);

  // --- the monitor, except for limit()
  //
  // Whether a rotad serves this process. If not, everything is covered.
  void serve(bool serves);
  // Any thread, any number of times: until rotad answers, only what the process already has is granted on this GPU;
  // open() says that rotad does not serve the GPU.
  void limit(int device);
  void open(int device);
  // Any thread: the process has a new context there, so what has been said is out of date.
  void context_made(int device);
  struct Ask {
    std::uint32_t number;
    Bytes bytes;
  };
  // What has to be sent for this GPU; returned once.
  std::optional<Ask> take_ask(int device);
  // Whether rotad has to be asked to measure there; returned once.
  bool take_measure(int device);
  // rotad has measured there.
  void measured(int device);
  // rotad's answer; its bytes are the grant from now on.
  void answer(int device, const protocol::Reserved& answer);
  // Lowers the grant to what is in use; returns that and the number of the latest answer.
  struct Has {
    Bytes bytes;
    std::uint32_t answered;
  };
  // `left` as above.
  Has tighten(int device, std::uint64_t left = protocol::kUnlimited);
  // What it has been promised on a GPU that it holds; kUnlimited: it does not hold the GPU.
  void promise(int device, std::uint64_t bytes);
  std::uint64_t promised(int device) const { return slot(device).promised.load(); }
  // What the promise has to cover: what the process has there and is about to take; or more, if a thread waits for the
  // whole GPU.
  std::uint64_t needed(int device) const;
  bool covered(int device) const { return needed(device) <= promised(device); }
  // How many threads wait for a promise.
  std::uint32_t waiting() const { return waiters_.count(); }
  // Any thread: no thread waits from now on.
  void release_all();

 private:
  using Clock = std::chrono::steady_clock;
  struct Granted {
    std::atomic<std::uint64_t> device{protocol::kUnlimited};
    std::atomic<std::uint64_t> movable{protocol::kUnlimited};
    std::atomic<std::uint64_t> fixed{protocol::kUnlimited};
    std::atomic<std::uint64_t> swapped{protocol::kUnlimited};
    Bytes load() const { return {device.load(), movable.load(), fixed.load(), swapped.load()}; }
    void store(const Bytes& bytes) {
      device.store(bytes.device);
      movable.store(bytes.movable);
      fixed.store(bytes.fixed);
      swapped.store(bytes.swapped);
    }
  };
  struct Slot {
    std::atomic<std::uint64_t> promised{kUnlimited};
    Waiters want_all;                     // threads,
    std::atomic<std::uint64_t> total{0};  // and the GPU's size
    Granted granted_bytes;
    std::mutex asking;  // held by the thread that asks
    // Under the lock below:
    bool decided = false;       // limit() or open() was called for the rotad that serves now
    Bytes pending;              // reserved in the ledger by threads that ask or wait to ask
    std::optional<Ask> ask;     // not sent yet
    std::uint32_t awaited = 0;  // number of the ask that has no answer; 0: none
    bool granted = false;       // the answer has come, and the thread that asked has not seen it yet
    std::string why;            // the last refusal
    bool full = false;          // that answer: refused because of others' memory
    Bytes own;                  // that thread's part of `pending`
    std::uint32_t answered = 0;
    std::uint64_t given_back = 0;  // by tighten(), while rotad still says that `left_then` is left
    std::uint64_t left_then = protocol::kUnlimited;
    Clock::time_point given_back_at{};
    bool known = false;              // it is known what rotad enforces on this GPU,
    bool served = false;             // because it has answered for it
    bool measure = false;            // it has to be asked once more, which was not sent yet
    bool afresh = false;             // a thread has asked for that since the last context was made
    Clock::time_point wait_until{};  // until when the first question waits for an answer; 0: no thread has asked
  };
  Slot& slot(int device) { return slots_[static_cast<std::size_t>(device)]; }
  const Slot& slot(int device) const { return slots_[static_cast<std::size_t>(device)]; }
  bool granted(int device, const Bytes& own, const Bytes& uncounted, FunctionRef<void()> release, bool* for_others);
  // `counted`: where it counts meanwhile; may be null.
  void wait_for_promise(int device, Waiters* counted, ForWhom for_whom);
  Bytes live(int device) const;
  Bytes without_pending(int device, const Slot& slot) const;
  Bytes tighten_locked(int device, Slot& slot);
  void open_locked(Slot& slot);

  memory::Residency& memory_;
  memory::Ledger& ledger_;
  Bell& bell_;
  const std::chrono::nanoseconds patience_;
  std::array<Slot, kMaxDevices> slots_;
  std::mutex mutex_;
  std::condition_variable answered_;
  // Under the lock:
  bool serving_ = false;
  std::uint32_t asks_ = 0;
  std::atomic<bool> released_{false};  // set under it, and read without it by threads that wait for a promise
  // Threads that wait for a promise.
  std::mutex promise_mutex_;
  Waiters waiters_;
};

}  // namespace rota::client
