// Peer access: which contexts may access which memory.
#pragma once

#include "tools/simgpu/driver/driver.h"

namespace rota::sim {

// Any two different GPUs of the simulated machine can reach each other, as on a host with NVLink.
inline bool peers_possible(int gpu, int other) {
  return gpu != other;
}

// Whether kernels of the context may access the allocation: plain device memory is open to its context and to those
// that enabled access to it; managed and host memory is open to all.
bool accessible(Context& context, const Allocation& allocation);

}  // namespace rota::sim
