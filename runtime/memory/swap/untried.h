// Machines on which swap memory has never been tried: there it is refused by name, and the GPU's memory is served as
// if nobody had asked for it.
#pragma once

#include <string>

#include "scheduler/protocol/protocol.h"

namespace rota::memory {

// How such a GPU's memory is served instead, if it has managed memory; nothing (kUnknown): it is none of these.
//
//   MPS           the processes of a user share one context, in which one's error ends them all
//   MIG           an instance of a GPU
//   confidential  what is copied is encrypted on the way, and host memory is pinned in a way of its own
//   coherent      the GPU uses the host's page tables (Grace): both sides reach memory where it lies
//
// Asks the driver, which need not know of MPS (before CUDA 12.4): then MPS's control daemon counts. `root` in front of
// /sys and of the daemon's folder is a test's.
protocol::MemoryMode untried(int device, const std::string& root = "");

// The same as the end of "swap memory has not been tried ".
const char* untried_where(protocol::MemoryMode mode);

}  // namespace rota::memory
