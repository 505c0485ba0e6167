// What memory asks of the code that takes turns on GPUs: whether work may run there now, what this process may have
// there, and that other processes evict their memory. runtime/monitor implements it (memory_turns.h), a test as it
// likes.
//
// Bytes everywhere. `device` is the driver's ordinal; where that is not below kMaxDevices nothing is limited. Unless
// said otherwise a function is called on the program's threads and on the monitor's, with no lock held.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "generated/driver_types.h"
#include "runtime/core/function_ref.h"
#include "runtime/memory/ledger.h"

namespace rota::memory {

// Work of rota's own that puts something on a GPU.
using OwnWork = FunctionRef<void()>;

// What limits that this process shares with others leave on a GPU. UINT64_MAX: there are none.
struct SharedLimit {
  std::uint64_t total = UINT64_MAX;  // for all that share it
  std::uint64_t left = UINT64_MAX;   // of that, for this process
};

// An allocation that was refused because of memory of others.
struct Refused {
  std::uint64_t bytes;
  bool in_extents;
  bool by_rotad;  // the last time, and not by the driver
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
};

class Turns {
 public:
  virtual ~Turns() = default;

  // --- work

  // Runs the work if this process may use the GPU now, and keeps the gate from closing meanwhile; otherwise does
  // nothing. Never waits. One caller holds the lock of swapped ranges; its work calls nothing.
  virtual void if_our_turn(int device, OwnWork work) = 0;
  // Waits for the work of a context, as cuMemFree of memory in it does, and returns the driver's answer. No value: it
  // has not waited, since that would disturb something else.
  virtual std::optional<api::CUresult> synchronize(api::CUcontext context) = 0;

  // --- what this process may have; on the program's threads

  // Bytes have just been reserved in the ledger and the driver has not been asked yet. Whether the limits that this
  // process shares with others allow them; if not, `release` has been called, which gives them back. Returns once they
  // may be taken: at once, or with rotad's answer, which depends on no GPU work, except for a process that holds the
  // GPU and now has more there than it has been promised. Never waits for the process's own work. If they do not,
  // `for_others` says whether the reason is memory that others have there, and may free.
  virtual bool may_take(int device, std::uint64_t bytes, Kind kind, FunctionRef<void()> release, bool& for_others) = 0;
  // The same for extents: whether this many more bytes, which needed_bytes() (residency.h) already counts, can be on
  // the GPU at once next to what others have there. If not, `release` has been called, which gives them back.
  // `uncounted`: what will lie in them and is not in the ledger yet.
  virtual bool may_take_extents(int device, std::uint64_t bytes, std::uint64_t uncounted, FunctionRef<void()> release,
                                bool& for_others) = 0;
  // What another thread has reserved, with its request still pending, may be in the way: waits for the answer. False:
  // none is pending.
  virtual bool wait_for_others(int device) = 0;
  // Says once why the last of these questions was answered by no.
  virtual void explain_refusal(int device) = 0;
  // Returns once it is known whether a rotad serves this process on the GPU, or a moment later: what serves an
  // allocation depends on that.
  virtual void wait_until_served_is_known(int device) = 0;

  // --- other processes' memory; on the program's threads

  // The driver has refused an allocation for lack of memory, although it is within the limits. Waits until others have
  // evicted theirs, at most until all of them have left the GPU, and calls `again`, which returns whether the driver no
  // longer refuses it. `pending`: those of its bytes that the ledger has already.
  virtual void make_room(int device, std::uint64_t pending, FunctionRef<bool()> again) = 0;
  // Whether await_room() would wait now with an allocation of these bytes, which the ledger may have already.
  virtual bool may_wait(int device, std::uint64_t bytes) = 0;
  // An allocation is refused although everything has been evicted that can be, and others may free memory: waits for
  // that as long as rotad says so, and calls `again`, which returns whether it is no longer refused, and sets
  // `what.by_rotad`.
  virtual void await_room(int device, const Refused& what, FunctionRef<bool()> again) = 0;
  // Like make_room(), for fresh extents, which may be created out of place. If others have memory there that can be
  // evicted, and this thread may wait for the monitor, it calls `begin`, after which not all memory is in place, and
  // returns once the gate is closed or never will be. Otherwise it returns at once, and the monitor is not told. False:
  // asking the driver again is futile.
  virtual bool close_gate(int device, FunctionRef<void()> begin) = 0;
  // Fresh memory is about to be out of place on this GPU, whose gate is closed. Returns whether work on other GPUs that
  // may use it cannot run either. False: it can, and this has waited until that may have changed.
  virtual bool others_closed(int device) = 0;
  // Whether others are said to be evicting memory there.
  virtual bool others_leave(int device) = 0;
  // Whether the programs on the GPU have more than it has, or had it within the last seconds.
  virtual bool overcommitted(int device) = 0;
  // The driver has refused an allocation for good although it is within all limits: says once who has memory there.
  virtual void say_full(int device) = 0;

  // --- figures; any of them may also be asked for with a lock of memory's held

  // What this process has on the GPU besides its allocations: contexts, modules, heaps; measured if possible, otherwise
  // assumed. 0 where it has no context.
  virtual std::uint64_t context_bytes(int device) = 0;
  // The same of all processes that rotad knows, this one included, what programs without rota have there, and what
  // rotad keeps free. 0: not known.
  virtual std::uint64_t all_context_bytes(int device) = 0;
  // What all other processes have allocated or may allocate there that cannot leave the GPU.
  virtual std::uint64_t fixed_of_others_bytes(int device) = 0;
  // Whether there are limits that this process shares with others. Does not ask rotad.
  virtual bool limited() = 0;

  // Not with a lock held, as they may wait for rotad: on the program's threads.

  virtual SharedLimit shared_limit(int device) = 0;
  // The program asks how much is free: returns once what is known of limits, contexts and other programs there is up to
  // date. Waits for rotad, at most a quarter of a second, and only for the first question after a context was made.
  virtual void refresh(int device) = 0;

  // --- news

  // The bytes that this process has in the ledger for the GPU have changed.
  virtual void changed(int device) = 0;
  // resident_bytes() or Sums::pinned (residency.h) has changed: called before the driver is asked for more and after it
  // has taken something back.
  virtual void resident_changed(int device) = 0;
  // An allocation has ended up out of place; the gate is closed. With the lock of the ranges held.
  virtual void out_of_place(int device) = 0;
};

// Without anybody who takes turns: what there is of a GPU may be taken and used at once.
class WithoutTurns : public Turns {
 public:
  // One object for all; it has no state.
  static Turns& instance();

  void if_our_turn(int, OwnWork work) override { work(); }
  std::optional<api::CUresult> synchronize(api::CUcontext) override { return std::nullopt; }
  bool may_take(int, std::uint64_t, Kind, FunctionRef<void()>, bool&) override { return true; }
  bool may_take_extents(int, std::uint64_t, std::uint64_t, FunctionRef<void()>, bool&) override { return true; }
  bool wait_for_others(int) override { return false; }
  void explain_refusal(int) override {}
  void wait_until_served_is_known(int) override {}
  void make_room(int, std::uint64_t, FunctionRef<bool()>) override {}
  bool may_wait(int, std::uint64_t) override { return false; }
  void await_room(int, const Refused&, FunctionRef<bool()>) override {}
  bool close_gate(int, FunctionRef<void()>) override { return false; }
  bool others_closed(int) override { return true; }
  bool others_leave(int) override { return false; }
  bool overcommitted(int) override { return false; }
  void say_full(int) override {}
  std::uint64_t context_bytes(int) override { return 0; }
  std::uint64_t all_context_bytes(int) override { return 0; }
  std::uint64_t fixed_of_others_bytes(int) override { return 0; }
  bool limited() override { return false; }
  SharedLimit shared_limit(int) override { return {}; }
  void refresh(int) override {}
  void changed(int) override {}
  void resident_changed(int) override {}
  void out_of_place(int) override {}
};

}  // namespace rota::memory
