// Stream memory operations: waiting for a value in memory and writing one, on a stream's thread.
#pragma once

#include <memory>

#include "tools/simgpu/driver/graph/graph.h"

namespace rota::sim {

// Checks the operations and combines them into one that a stream or a graph runs in order. Addresses must be aligned,
// and in device, pinned or registered memory: the driver accepts no managed memory here. A wait ends when its condition
// holds, when the context is destroyed, or with the context's error CUDA_ERROR_ILLEGAL_ADDRESS when the memory has been
// freed; until then the thread sleeps.
CUresult make_memory_operations(const CUstreamBatchMemOpParams* list, unsigned count, unsigned flags,
                                const std::shared_ptr<Context>& context, Operation* operation);

}  // namespace rota::sim
