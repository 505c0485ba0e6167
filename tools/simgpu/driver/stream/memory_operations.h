// Stream memory operations: waiting for a value in memory and writing one, on a stream's thread.
#pragma once

#include <memory>

#include "tools/simgpu/driver/graph/graph.h"

namespace rota::sim {

// Checks the operations and makes one of them all, which a stream or a graph runs one after the other. Addresses must
// be aligned, and of device, pinned or registered memory: the driver takes no managed memory here. A wait ends when its
// condition holds, when the context is destroyed, or with the context's error CUDA_ERROR_ILLEGAL_ADDRESS when the
// memory is gone; meanwhile the thread sleeps.
CUresult make_memory_operations(const CUstreamBatchMemOpParams* list, unsigned count, unsigned flags,
                                const std::shared_ptr<Context>& context, Operation* operation);

}  // namespace rota::sim
