// Who may touch whose memory.
#pragma once

#include "tools/simgpu/driver/driver.h"

namespace rota::sim {

// Any two different GPUs of the simulated machine can reach each other, as on a host with NVLink.
inline bool peers_possible(int gpu, int other) {
  return gpu != other;
}

// Whether kernels of the context may touch the allocation: plain device memory belongs to its context and to those
// that enabled access to it; managed and host memory is everybody's.
bool accessible(Context& context, const Allocation& allocation);

}  // namespace rota::sim
