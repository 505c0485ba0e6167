// Bringing this process's memory to its GPUs at the beginning of a turn.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/memory/memory.h"
#include "runtime/turn/contexts.h"

namespace rota::turn {

// Managed memory may have made room for others meanwhile. Moving it in one go before the first kernel runs at the copy
// engine's speed (50 GB/s measured); left to faults it would come at 10 GB/s, each kernel waiting. Waits for the move,
// since kernels that fault beside it would only be in its way; but not for ever, and not once `stopping` says so.
// Called by the monitor.
//
// True: everything is where work may touch it. Managed memory always is: what has not come by now comes by faults.
struct Destination {
  int device;
  std::uint64_t most;  // bytes that this process may have there, as far as anybody says
};
bool bring_back(gate::Contexts& contexts, memory::Memory& memory, const std::vector<Destination>& destinations,
                const std::function<bool()>& stopping);

}  // namespace rota::turn
