// Linear copies between the host and a GPU. They go to the driver as they are; where it refuses one because another
// GPU's context is current, it is made with the memory's own.
#include <cstddef>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/core/runtime.h"
#include "runtime/driver/context.h"
#include "runtime/driver/gpu_number.h"
#include "runtime/driver/stream.h"
#include "runtime/hooks/overrides.h"
#include "runtime/hooks/transfer.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;

namespace {

// A copy between the host and memory of another GPU than the current context's, which the driver has refused with
// `result`, as it does if the memory is mapped only for its own GPU. The copy is made with the memory's context: in the
// same stream or, if the handle means a stream of the current context, once that stream's work has finished.
template <typename Copy, typename Async>
CUresult with_own_context(CUresult result, CUdeviceptr address, api::CUstream stream, Copy&& copy, Async&& async) {
  const Runtime& parts = runtime();
  if (!parts.memory.swaps(address, 1)) return result;
  if (const driver::CurrentContext own(own_context(address, 0, stream)); own) {
    return async() == api::CUDA_SUCCESS ? api::CUDA_SUCCESS : result;
  }
  int current = -1;
  const int device = parts.memory.device_of(address);
  if (real::cuCtxGetDevice(&current) != api::CUDA_SUCCESS || device < 0 || device == current) return result;
  const api::CUcontext context = parts.contexts.some(device);
  if (context == nullptr || driver::captures(stream, false)) return result;
  static log::Once once;
  if (once.first()) {
    log::info(
        "copies between the host and memory of GPU {} that swaps wait while a context of GPU {} is current, in its "
        "default streams",
        driver::gpu_number(device), driver::gpu_number(current));
  }
  const CUresult before = real::cuStreamSynchronize(stream);
  const driver::CurrentContext own(context);
  return before == api::CUDA_SUCCESS && own ? copy() : result;
}

[[gnu::cold, gnu::noinline]] CUresult from_host_refused(CUresult result, CUdeviceptr destination, const void* source,
                                                        std::size_t bytes, api::CUstream stream) {
  return with_own_context(
      result, destination, stream, [&] { return gates::cuMemcpyHtoD_v2(destination, source, bytes); },
      [&] { return gates::cuMemcpyHtoDAsync_v2(destination, source, bytes, stream); });
}

[[gnu::cold, gnu::noinline]] CUresult to_host_refused(CUresult result, void* destination, CUdeviceptr source,
                                                      std::size_t bytes, api::CUstream stream) {
  return with_own_context(
      result, source, stream, [&] { return gates::cuMemcpyDtoH_v2(destination, source, bytes); },
      [&] { return gates::cuMemcpyDtoHAsync_v2(destination, source, bytes, stream); });
}

CUresult from_host(CUresult result, CUdeviceptr destination, const void* source, std::size_t bytes,
                   api::CUstream stream) {
  if (result != api::CUDA_ERROR_INVALID_VALUE) [[likely]]
    return result;
  return from_host_refused(result, destination, source, bytes, stream);
}

CUresult to_host(CUresult result, void* destination, CUdeviceptr source, std::size_t bytes, api::CUstream stream) {
  if (result != api::CUDA_ERROR_INVALID_VALUE) [[likely]]
    return result;
  return to_host_refused(result, destination, source, bytes, stream);
}

}  // namespace

api::CUcontext own_context(CUdeviceptr destination, CUdeviceptr source, api::CUstream stream) {
  if (driver::of_current_context(stream)) return nullptr;
  const Runtime& parts = runtime();
  const auto device_of = [&](CUdeviceptr address) { return address != 0 ? parts.memory.device_of(address) : -1; };
  const int to = device_of(destination);
  const int from = device_of(source);
  const int device = to >= 0 ? to : from;
  const bool one = device >= 0 && (from < 0 || from == device);
  int current = -1;
  if (!one || real::cuCtxGetDevice(&current) != api::CUDA_SUCCESS || current == device) return nullptr;
  return parts.contexts.some(device);
}

CUresult host_refused(CUresult result, CUdeviceptr destination, CUdeviceptr source, std::size_t bytes,
                      api::CUstream stream) {
  if (runtime().memory.swaps(destination, 1))
    return from_host_refused(result, destination, reinterpret_cast<const void*>(source), bytes, stream);
  return to_host_refused(result, reinterpret_cast<void*>(destination), source, bytes, stream);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void* srcHost, std::size_t ByteCount) {
  return from_host(gates::cuMemcpyHtoD_v2(dstDevice, srcHost, ByteCount), dstDevice, srcHost, ByteCount, nullptr);
}

CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr dstDevice, const void* srcHost, std::size_t ByteCount) {
  return from_host(gates::cuMemcpyHtoD_v2_ptds(dstDevice, srcHost, ByteCount), dstDevice, srcHost, ByteCount,
                   driver::kPerThreadStream);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void* srcHost, std::size_t ByteCount,
                              api::CUstream hStream) {
  return from_host(gates::cuMemcpyHtoDAsync_v2(dstDevice, srcHost, ByteCount, hStream), dstDevice, srcHost, ByteCount,
                   hStream);
}

CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr dstDevice, const void* srcHost, std::size_t ByteCount,
                                   api::CUstream hStream) {
  return from_host(gates::cuMemcpyHtoDAsync_v2_ptsz(dstDevice, srcHost, ByteCount, hStream), dstDevice, srcHost,
                   ByteCount, driver::meant(hStream, true));
}

CUresult cuMemcpyDtoH_v2(void* dstHost, CUdeviceptr srcDevice, std::size_t ByteCount) {
  return to_host(gates::cuMemcpyDtoH_v2(dstHost, srcDevice, ByteCount), dstHost, srcDevice, ByteCount, nullptr);
}

CUresult cuMemcpyDtoH_v2_ptds(void* dstHost, CUdeviceptr srcDevice, std::size_t ByteCount) {
  return to_host(gates::cuMemcpyDtoH_v2_ptds(dstHost, srcDevice, ByteCount), dstHost, srcDevice, ByteCount,
                 driver::kPerThreadStream);
}

CUresult cuMemcpyDtoHAsync_v2(void* dstHost, CUdeviceptr srcDevice, std::size_t ByteCount, api::CUstream hStream) {
  return to_host(gates::cuMemcpyDtoHAsync_v2(dstHost, srcDevice, ByteCount, hStream), dstHost, srcDevice, ByteCount,
                 hStream);
}

CUresult cuMemcpyDtoHAsync_v2_ptsz(void* dstHost, CUdeviceptr srcDevice, std::size_t ByteCount, api::CUstream hStream) {
  return to_host(gates::cuMemcpyDtoHAsync_v2_ptsz(dstHost, srcDevice, ByteCount, hStream), dstHost, srcDevice,
                 ByteCount, driver::meant(hStream, true));
}

// The forms of CUDA 3.1 and before carry 32-bit addresses, which swapped memory does not have.
CUresult cuMemcpyHtoD(api::CUdeviceptr_v1 dstDevice, const void* srcHost, unsigned int ByteCount) {
  return gates::cuMemcpyHtoD(dstDevice, srcHost, ByteCount);
}

CUresult cuMemcpyHtoDAsync(api::CUdeviceptr_v1 dstDevice, const void* srcHost, unsigned int ByteCount,
                           api::CUstream hStream) {
  return gates::cuMemcpyHtoDAsync(dstDevice, srcHost, ByteCount, hStream);
}

CUresult cuMemcpyDtoH(void* dstHost, api::CUdeviceptr_v1 srcDevice, unsigned int ByteCount) {
  return gates::cuMemcpyDtoH(dstHost, srcDevice, ByteCount);
}

CUresult cuMemcpyDtoHAsync(void* dstHost, api::CUdeviceptr_v1 srcDevice, unsigned int ByteCount,
                           api::CUstream hStream) {
  return gates::cuMemcpyDtoHAsync(dstHost, srcDevice, ByteCount, hStream);
}

}  // namespace rota::overrides
