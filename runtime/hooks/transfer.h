// Synchronous copies and sets that wait no longer than without rota (transfer.cpp says when they do).
#pragma once

#include <cstddef>
#include <cstdint>

#include "generated/driver_real.h"
#include "runtime/core/runtime.h"

namespace rota::overrides {

// The stream of a synchronous call.
inline const api::CUstream kNull = nullptr;
inline const api::CUstream kOwnOfThread = reinterpret_cast<api::CUstream>(std::uintptr_t{2});  // CU_STREAM_PER_THREAD

// The stream of a per-thread form.
inline api::CUstream own_of_thread(api::CUstream stream) {
  return stream != nullptr ? stream : kOwnOfThread;
}

// If the asynchronous form fails, it has done nothing: then the program's own call is made.
template <typename Call, typename Async>
api::CUresult without_waiting(bool makes_it_wait, Call&& call, Async&& async) {
  if (makes_it_wait && runtime().contexts.captures() == 0 && async() == api::CUDA_SUCCESS) return api::CUDA_SUCCESS;
  return call();
}

// A call has succeeded that touches memory which the program has made synchronous: rota has to wait.
inline api::CUresult waited(api::CUresult result, bool has_to_wait, api::CUstream stream) {
  return result == api::CUDA_SUCCESS && has_to_wait ? real::cuStreamSynchronize(stream) : result;
}

template <typename Call, typename Async>
api::CUresult copy(api::CUstream stream, api::CUdeviceptr destination, api::CUdeviceptr source, Call&& call,
                   Async&& async) {
  const memory::Memory& memory = runtime().memory;
  return waited(without_waiting(memory.only_converted_makes_it_wait(destination, source), call, async),
                memory.has_to_wait(destination) || memory.has_to_wait(source), stream);
}

// The driver judges copies of memory that is mapped for its own GPU only, as swapped memory is, by the current context,
// whatever stream they are in, also while that captures (measured on two H200s, 580.159.04). Returns, for such a copy
// that the driver has refused, the memory's context, with which the driver accepts it in the same stream. Null: there
// is none, since the stream's handle means one of the current context, or the two sides are on different GPUs. Pass
// address 0 for what is not device memory.
api::CUcontext own_context(api::CUdeviceptr destination, api::CUdeviceptr source, api::CUstream stream);

// A copy with unified addressing between the host and swapped memory, which the driver has refused with `result`
// (host_transfer.cpp).
api::CUresult host_refused(api::CUresult result, api::CUdeviceptr destination, api::CUdeviceptr source,
                           std::size_t bytes, api::CUstream stream);

}  // namespace rota::overrides
