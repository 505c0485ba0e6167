// Restores this process's memory to its GPUs at the beginning of a turn, and evicts it for other processes: Unified
// Memory at the end of a turn, extents whenever rotad asks for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/core/function_ref.h"
#include "runtime/driver/contexts.h"
#include "runtime/memory/residency.h"

namespace rota::monitor {

struct Destination {
  int device;
  std::uint64_t most;  // bytes: in an eviction what has to leave the GPU, otherwise what Unified Memory may fill of it
};

// How a GPU's memory goes to other processes and comes from them.
using ExchangeOf = std::function<memory::Exchange(int device)>;

struct Back {
  bool resident = true;     // all extents of the destinations are in place; Unified Memory need not be
  std::uint64_t bytes = 0;  // of extents, copied in: the sum over `copied`
  struct Copied {
    int device;
    std::uint64_t bytes;
    std::chrono::nanoseconds time;
  };
  std::vector<Copied> copied;
  std::uint64_t taken_over = 0;  // bytes of extents that use memory handed over by another process
  bool some = false;             // some extents were restored
  // The driver's error for an extent, or for the context or stream of its move, except for out of memory; CUDA_SUCCESS:
  // none.
  api::CUresult error = api::CUDA_SUCCESS;
  // GPUs on which the driver had no memory for extents: bytes that are still evicted, and what the driver reported as
  // free.
  struct Shortage {
    int device;
    std::uint64_t bytes;
    std::uint64_t free_bytes;
    bool denied;  // although free_bytes was clearly enough
  };
  std::vector<Shortage> shortages;
};

// Unified Memory may have been evicted for others since the last turn. If it is restored in one go before the first
// kernel, the copy engine does it at 50 GB/s (measured); page faults would restore it at 10 GB/s, with each kernel
// waiting. Waits for the move, since kernels that fault at the same time would only slow it down; but not forever, and
// not once `stopping` returns true. Called by the monitor.
//
// Extents (memory/swap/swap.h) have to be on the GPU before work runs: as many as the driver has memory for are
// restored, the rest in another attempt. Host memory is unpinned only once `idle` says that no work of the process
// runs.
Back bring_back(driver::Contexts& contexts, memory::Residency& memory, const std::vector<Destination>& destinations,
                const ExchangeOf& exchange, FunctionRef<bool()> stopping, FunctionRef<bool()> idle);

// Evicts Unified Memory for the next process while no work of this one runs: otherwise the next one's faults and
// prefetches would evict it a little at a time. Waits for the eviction, at most as long as a slow link takes (10 GB/s;
// 15 to 17 measured), and not beyond `latest`: the rest is evicted while others run. Returns the bytes whose eviction
// was begun. Called by the monitor.
std::uint64_t move_out(driver::Contexts& contexts, memory::Residency& memory, const std::vector<Destination>& from,
                       std::chrono::steady_clock::time_point latest, FunctionRef<bool()> stopping);

struct Left {
  std::uint64_t bytes = 0;
  std::uint64_t copied = 0;  // of them
  std::uint64_t spared = 0;  // of them: evicted without a copy: unchanged, unused or zeros
  bool failed = false;
  bool lacks_host = false;  // the host has no memory for the rest
};
// Evicts extents, whose memory others cannot have before that. No thread is inside the gate, which is closed, and the
// process's work has finished.
Left swap_out(driver::Contexts& contexts, memory::Residency& memory, const Destination& from,
              const ExchangeOf& exchange, FunctionRef<bool()> stopping);

}  // namespace rota::monitor
