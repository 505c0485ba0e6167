// Kinds of machines on which swap memory has never been tested: there rota says so and serves the GPU's memory as if
// swap had not been requested.
#pragma once

#include <string>

#include "scheduler/protocol/protocol.h"

namespace rota::memory {

// How such a GPU's memory is served instead, if it has managed memory; nothing (kUnknown): it is none of these.
//
//   MPS           the processes of a user share one context, in which one's error ends them all
//   MIG           an instance of a GPU
//   confidential  copies are encrypted on the way, and host memory is pinned differently
//   coherent      the GPU uses the host's page tables (Grace): both sides reach memory where it lies
//
// Asks the driver, which need not know of MPS (before CUDA 12.4): then MPS's control daemon counts. Tests put `root` in
// front of /sys and of the daemon's folder.
protocol::MemoryMode untried(int device, const std::string& root = "");

}  // namespace rota::memory
