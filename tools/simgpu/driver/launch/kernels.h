// Launches of kernels (host functions from ROTA_SIM_KERNELS).
#pragma once

#include "tools/simgpu/driver/api.h"
#include "tools/simgpu/driver/graph/graph.h"
#include "tools/simgpu/driver/module/modules.h"
#include "tools/simgpu/kernel.h"

namespace rota::sim {

// The keys before the argument buffer and its size in `extra`: CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE of cuda.h.
inline void* const kBufferPointer = reinterpret_cast<void*>(uintptr_t{1});
inline void* const kBufferSize = reinterpret_cast<void*>(uintptr_t{2});

// Copies the arguments (kernelParams or the extra buffer) of a function into the parameters of a launch.
CUresult pack_arguments(void** arguments, void** extra, KernelParameters* launch);

// Checks shape, resources and attributes, and makes the operation that a stream or a graph runs.
CUresult make_launch(const KernelParameters& launch, Operation* operation);

}  // namespace rota::sim
