// Bringing this process's memory to its GPUs at the beginning of a turn, and making room there at its end.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/memory/memory.h"
#include "runtime/turn/contexts.h"

namespace rota::turn {

struct Destination {
  int device;
  std::uint64_t most;  // bytes: that may be there, or that are to leave
};

// How a GPU's memory goes to other processes and comes from them.
using ExchangeOf = std::function<memory::Exchange(int device)>;

struct Back {
  bool resident = true;     // everything is where work may touch it; managed memory always is: the rest comes by faults
  std::uint64_t bytes = 0;  // of extents whose contents have been copied in
  std::uint64_t taken_over = 0;  // bytes of extents that lie in memory that another process has handed over
  bool some = false;             // some extents have come
  // Why the driver has refused to bring an extent, if it was not for want of room; CUDA_SUCCESS: it has not.
  api::CUresult error = api::CUDA_SUCCESS;
  // GPUs on which the driver had no room for extents: bytes that are still out, and what it called free.
  struct Shortage {
    int device;
    std::uint64_t bytes;
    std::uint64_t free_bytes;
  };
  std::vector<Shortage> shortages;
};

// Managed memory may have made room for others meanwhile. Moving it in one go before the first kernel runs at the copy
// engine's speed (50 GB/s measured); left to faults it would come at 10 GB/s, each kernel waiting. Waits for the move,
// since kernels that fault beside it would only be in its way; but not for ever, and not once `stopping` says so.
// Called by the monitor.
//
// Extents (memory/swap/swap.h) have to be there before work runs: as much as the driver has room for comes, and the
// rest at another attempt.
Back bring_back(gate::Contexts& contexts, memory::Memory& memory, const std::vector<Destination>& destinations,
                const ExchangeOf& exchange, const std::function<bool()>& stopping);

// Makes room for who comes next, while nothing of this process runs: it would otherwise be made a little at a time, by
// the faults and prefetches of the other. `most` is how much each GPU's is to be. Waits until the memory has gone, at
// most as long as a slow link takes (10 GB/s; 15 to 17 measured), and not beyond `latest`: what has not gone by then
// goes while others run. Bytes that were asked to go. Called by the monitor.
std::uint64_t move_out(gate::Contexts& contexts, memory::Memory& memory, const std::vector<Destination>& from,
                       std::chrono::steady_clock::time_point latest, const std::function<bool()>& stopping);

// The same for extents, which have to leave before others have the room. The gate is closed, the process's work has
// finished, and no thread is inside. `most`: bytes to leave.
struct Left {
  std::uint64_t bytes = 0;
  std::uint64_t copied = 0;  // of them
  std::uint64_t spared = 0;  // of them: went without a copy, since it would have brought nothing new
  bool failed = false;
  bool lacks_host = false;  // the host has no memory for the rest
};
Left swap_out(gate::Contexts& contexts, memory::Memory& memory, const Destination& from, const ExchangeOf& exchange,
              const std::function<bool()>& stopping);

}  // namespace rota::turn
