// A submitting call, as its gate and the bookkeeping of captures see it.
#pragma once

#include <cstdint>

#include "generated/driver_symbols.h"
#include "generated/driver_types.h"

namespace rota::driver {

// Which GPUs a call reaches in addition to that of its stream or, without a stream, of the current context.
enum class Reaches : std::uint8_t {
  kNoOther,          // none (kernels reach memory of others only where that was mapped for their GPU)
  kAddresses,        // those of the memory at the addresses `first` and `second`; null: none
  kArrays,           // those of the arrays with the handles `first` and `second`; null: none
  kAddressAndArray,  // that of the memory at the address `first` and that of the array `second`
  kCopy,   // those of both sides of the copy that the record at `first` describes (CUDA_MEMCPY2D, CUDA_MEMCPY3D and
           // CUDA_MEMCPY3D_PEER), whose addresses lie at the places that `second` names (in_record())
  kGraph,  // those of the nodes of the executable graph `first`
  kAll,    // any
};

// Two places in a record, in bytes from its beginning, as Call::second.
inline const void* in_record(std::uintptr_t first, std::uintptr_t second) {
  return reinterpret_cast<const void*>(first << 16 | second);
}

// What the slow path needs to know about a submitting call.
struct Call {
  Symbol symbol;
  api::CUstream stream;  // meaningful if has_stream
  bool has_stream;
  bool per_thread;  // a _ptsz/_ptds form: the NULL stream means the calling thread's own
  Reaches reaches = Reaches::kNoOther;
  const void* first = nullptr;
  const void* second = nullptr;
};

}  // namespace rota::driver
