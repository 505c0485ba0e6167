// Room on the GPUs as memory sees it: provided by the code that talks to rotad, which knows how much this process may
// have there.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "runtime/core/function_ref.h"
#include "runtime/memory/ledger.h"

namespace rota::memory {

// An allocation that the driver has refused.
struct Refused {
  std::uint64_t bytes;
  std::uint64_t fixed;  // the part of them that the ledger counts as memory that cannot leave
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
};

// On the program's threads, with no lock held. An empty function: whatever fits the limits may be taken.
struct Room {
  // Bytes have just been reserved in the ledger and the driver has not been asked yet. Whether the limits that this
  // process shares with others allow them; if not, they have been released. Returns once they may be taken: at once, or
  // with rotad's answer, which depends on no GPU work, except for a process that holds the GPU and now has more there
  // than it has been promised. Never waits for the process's own work.
  std::function<bool(int device, std::uint64_t bytes, Kind kind)> may_take;
  // What another thread has reserved, with its request still pending, may be in the way: waits for the answer. False:
  // none is pending.
  std::function<bool(int device)> wait_for_others;
  // Returns once it is known whether a rotad serves this process on a GPU, or a moment later: what serves an allocation
  // depends on that.
  std::function<void(int device)> served_is_known;
  // Says once why may_take() has refused something.
  std::function<void(int device)> explain;
  // The driver has refused an allocation on this GPU for lack of memory, although it is within the limits. Waits until
  // others have made room, at most until all of them have left the GPU, and calls `again`, which returns whether the
  // driver no longer refuses it.
  std::function<void(int device, FunctionRef<bool()> again)> make;
  // The driver refuses it for good, but for memory of others that may be freed: waits for that, as long as rotad says
  // so, and calls `again`, which returns whether the driver no longer refuses it.
  std::function<void(int device, const Refused& what, FunctionRef<bool()> again)> await;
  // Whether others are said to be making room on this GPU.
  std::function<bool(int device)> coming;
  // Whether the programs on this GPU have more than it has, or had it within the last seconds.
  std::function<bool(int device)> crowded;
  // What limits shared with others leave on a GPU. UINT64_MAX: there are none.
  struct Limit {
    std::uint64_t total = UINT64_MAX;  // for all that share it
    std::uint64_t left = UINT64_MAX;   // of that, for this process
  };
  std::function<Limit(int device)> limit;
  // The program asks how much is free on a GPU: returns once what is known of limits, contexts and other programs there
  // is up to date. Waits for rotad, at most a quarter of a second, and only for the first question after a context was
  // made.
  std::function<void(int device)> refresh;
  // Whether there are such limits. Does not ask rotad.
  std::function<bool()> limited;
  // What this process has on a GPU besides its allocations: contexts, modules, heaps; measured if possible, otherwise
  // assumed. 0 where it has no context.
  std::function<std::uint64_t(int device)> contexts;
  // The same of all processes that rotad knows, this one included, and what programs without rota have there. 0: not
  // known.
  std::function<std::uint64_t(int device)> all_contexts;
  // What all the other processes have allocated or may allocate there that cannot leave the GPU.
  std::function<std::uint64_t(int device)> fixed_of_others;
  // The driver has refused an allocation for good although it is within all limits: says once who has memory there.
  std::function<void(int device)> full;
};

}  // namespace rota::memory
