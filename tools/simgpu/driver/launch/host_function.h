// Functions of the program that a stream calls. They must not call the driver: every call made inside returns
// CUDA_ERROR_NOT_PERMITTED.
#pragma once

#include "tools/simgpu/driver/api.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/state/clock.h"

namespace rota::sim {

// Whether the calling thread is inside a host function or a stream callback.
inline bool& in_host_function() {
  thread_local bool inside = false;
  return inside;
}

// An exception from the program terminates it, as with the real driver.
template <class Call>
void run_host_code(Call call) noexcept {
  in_host_function() = !mutated(Mutation::host_functions_may_call);
  {
    ProgramCode others_may_go_on;
    call();
  }
  in_host_function() = false;
}

inline void run_host_function(CUhostFn function, void* data) {
  run_host_code([function, data] { function(data); });
}

}  // namespace rota::sim
