// Copies and sets: checked when submitted, executed by the stream's thread. Every copy becomes a CUDA_MEMCPY3D and
// every set a CUDA_MEMSET_NODE_PARAMS, whatever function it came from, so that streams, captures and explicit graph
// nodes share one path.
#pragma once

#include "tools/simgpu/driver/driver.h"

namespace rota::sim {

// Checks the parameters against the memory as it is now. The operation looks the memory up again each time it runs, and
// its context fails with CUDA_ERROR_ILLEGAL_ADDRESS if the memory has been freed. Needs no stream.
CUresult make_copy(Context& context, const CUDA_MEMCPY3D& parameters, Operation* operation);
CUresult make_set(Context& context, const CUDA_MEMSET_NODE_PARAMS& parameters, Operation* operation);

// In all of these `reserved0` and `reserved1` are the contexts that the call names for the source and the destination;
// null: it names none.
//
// Synchronous forms run in the default stream that the form selects. Whether the call returns before the copy completes
// follows the driver's rules for the two kinds of memory (see copies.cpp).
CUresult copy(const CUDA_MEMCPY3D& parameters, bool asynchronous, CUstream stream, Form form);
CUresult set(const CUDA_MEMSET_NODE_PARAMS& parameters, bool asynchronous, CUstream stream, Form form);

// When a copy in a stream reads its source (CUmemcpySrcAccessOrder). Pageable memory is read before the call returns
// unless the caller allows otherwise.
enum class SourceOrder { kStream, kDuringCall, kAny };
// Queues a checked copy and waits for it only as far as the access order requires.
CUresult queue_copy(const ContextPointer& context, const StreamPointer& stream, const CUDA_MEMCPY3D& parameters,
                    SourceOrder order);

// A plain copy of bytes: one row.
CUDA_MEMCPY3D plain_copy(CUmemorytype to_type, uint64_t to, CUmemorytype from_type, uint64_t from, size_t bytes);
CUDA_MEMSET_NODE_PARAMS plain_set(uint64_t to, unsigned value, unsigned element, size_t count);

}  // namespace rota::sim
