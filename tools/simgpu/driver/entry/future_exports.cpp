// Functions that no covered release has, as in a driver that is newer than rota (posed.h).
#include "tools/simgpu/driver/copy/copies.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

#define ROTA_SIM_FUTURE(name) extern "C" __attribute__((visibility("default"))) ::rota::api::CUresult name

// A query: returns 1 once the program has initialised the driver.
ROTA_SIM_FUTURE(rota_sim_future_call)(int* answer) {
  ROTA_SIM_READY();
  if (answer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *answer = 1;
  return CUDA_SUCCESS;
}

// Work for the GPU: fills `words` words.
ROTA_SIM_FUTURE(rota_sim_future_fill_async)(CUdeviceptr to, unsigned value, size_t words, CUstream stream) {
  return set(plain_set(to, value, 4, words), true, stream, Form::kLegacy);
}
