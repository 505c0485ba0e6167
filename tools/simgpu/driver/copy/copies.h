// Copies and sets: checked when they are submitted, done by the stream's thread. Every copy is a CUDA_MEMCPY3D and
// every set a CUDA_MEMSET_NODE_PARAMS, whatever function it came from, so that streams, captures and explicit graph
// nodes share one way.
#pragma once

#include "tools/simgpu/driver/driver.h"

namespace rota::sim {

// All checks of the parameters, against the memory as it is now; the operation finds the memory again each time it
// runs, and its context fails with CUDA_ERROR_ILLEGAL_ADDRESS if it has gone meanwhile. Needs no stream.
CUresult make_copy(Context& context, const CUDA_MEMCPY3D& parameters, Operation* operation);
CUresult make_set(Context& context, const CUDA_MEMSET_NODE_PARAMS& parameters, Operation* operation);

// Synchronous forms run in the default stream that the form names. Whether the call returns before the copy has ended
// follows the driver's rules for the two kinds of memory (see copies.cpp).
CUresult copy(const CUDA_MEMCPY3D& parameters, bool asynchronous, CUstream stream, Form form);
CUresult set(const CUDA_MEMSET_NODE_PARAMS& parameters, bool asynchronous, CUstream stream, Form form);

// When a copy that is put into a stream reads its source (CUmemcpySrcAccessOrder). Pageable memory is read before the
// call returns unless the caller allows otherwise.
enum class SourceOrder { kStream, kDuringCall, kAny };
// Queues a checked copy without waiting for it beyond what the order demands.
CUresult queue_copy(const ContextPointer& context, const StreamPointer& stream, const CUDA_MEMCPY3D& parameters,
                    SourceOrder order);

// A plain copy of bytes: one row.
CUDA_MEMCPY3D plain_copy(CUmemorytype to_type, uint64_t to, CUmemorytype from_type, uint64_t from, size_t bytes);
CUDA_MEMSET_NODE_PARAMS plain_set(uint64_t to, unsigned value, unsigned element, size_t count);

}  // namespace rota::sim
