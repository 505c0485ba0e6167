// Stream memory operations: waiting for a value in memory and writing one, on a stream's thread.
#pragma once

#include <vector>

#include "tools/simgpu/driver/api.h"

namespace rota::sim {

struct Context;

// Whether the operations may be queued. Addresses must be aligned, and of device, pinned or registered memory: the
// driver takes no managed memory here.
CUresult check_memory_operations(const Context& context, const CUstreamBatchMemOpParams* operations, unsigned count);

// Runs them one after the other. A wait ends when its condition holds, when the context is destroyed, or with the
// context's error CUDA_ERROR_ILLEGAL_ADDRESS when the memory is gone; meanwhile the thread sleeps.
void run_memory_operations(Context& context, const std::vector<CUstreamBatchMemOpParams>& operations);

}  // namespace rota::sim
