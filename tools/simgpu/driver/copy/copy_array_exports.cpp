// Copies of bytes to and from arrays: within a row, the first one of an array with rows.
#include "tools/simgpu/driver/array/array.h"
#include "tools/simgpu/driver/copy/copies.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

struct End {
  CUarray array = nullptr;
  size_t offset = 0;  // bytes into the array
  const void* host = nullptr;
  CUdeviceptr device = 0;
};
End in_array(CUarray array, size_t offset) {
  return {array, offset, nullptr, 0};
}
End in_host(const void* host) {
  return {nullptr, 0, host, 0};
}
End in_device(CUdeviceptr device) {
  return {nullptr, 0, nullptr, device};
}

CUmemorytype type_of(const End& end, bool array) {
  if (array) return CU_MEMORYTYPE_ARRAY;
  return end.device != 0 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

CUresult copy_array(const End& to, bool to_array, const End& from, bool from_array, size_t bytes, bool asynchronous,
                    CUstream stream, Form form) {
  ROTA_SIM_READY();
  for (const auto& [end, array] : {std::pair{to, to_array}, std::pair{from, from_array}}) {
    if (!array) continue;
    auto found = driver().arrays.find(end.array);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    if (found->slices > 1) return CUDA_ERROR_INVALID_VALUE;
  }
  CUDA_MEMCPY3D parameters{};
  parameters.dstMemoryType = type_of(to, to_array);
  parameters.dstArray = to.array;
  parameters.dstXInBytes = to.offset;
  parameters.dstHost = const_cast<void*>(to.host);
  parameters.dstDevice = to.device;
  parameters.srcMemoryType = type_of(from, from_array);
  parameters.srcArray = from.array;
  parameters.srcXInBytes = from.offset;
  parameters.srcHost = from.host;
  parameters.srcDevice = from.device;
  parameters.WidthInBytes = bytes;
  parameters.Height = 1;
  parameters.Depth = 1;
  return copy(parameters, asynchronous, stream, form);
}

}  // namespace

#define FORMS(form, h_to_a, a_to_h, d_to_a, a_to_d, a_to_a, h_to_a_async, a_to_h_async)                               \
  ROTA_SIM_EXPORT(h_to_a)(CUarray to, size_t offset, const void* from, size_t bytes) {                                \
    return copy_array(in_array(to, offset), true, in_host(from), false, bytes, false, nullptr, form);                 \
  }                                                                                                                   \
  ROTA_SIM_EXPORT(a_to_h)(void* to, CUarray from, size_t offset, size_t bytes) {                                      \
    return copy_array(in_host(to), false, in_array(from, offset), true, bytes, false, nullptr, form);                 \
  }                                                                                                                   \
  ROTA_SIM_EXPORT(d_to_a)(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {                                \
    return copy_array(in_array(to, offset), true, in_device(from), false, bytes, false, nullptr, form);               \
  }                                                                                                                   \
  ROTA_SIM_EXPORT(a_to_d)(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {                                \
    return copy_array(in_device(to), false, in_array(from, offset), true, bytes, false, nullptr, form);               \
  }                                                                                                                   \
  ROTA_SIM_EXPORT(a_to_a)(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) {             \
    return copy_array(in_array(to, to_offset), true, in_array(from, from_offset), true, bytes, false, nullptr, form); \
  }                                                                                                                   \
  ROTA_SIM_EXPORT(h_to_a_async)(CUarray to, size_t offset, const void* from, size_t bytes, CUstream stream) {         \
    return copy_array(in_array(to, offset), true, in_host(from), false, bytes, true, stream, form);                   \
  }                                                                                                                   \
  ROTA_SIM_EXPORT(a_to_h_async)(void* to, CUarray from, size_t offset, size_t bytes, CUstream stream) {               \
    return copy_array(in_host(to), false, in_array(from, offset), true, bytes, true, stream, form);                   \
  }
FORMS(Form::kLegacy, cuMemcpyHtoA_v2, cuMemcpyAtoH_v2, cuMemcpyDtoA_v2, cuMemcpyAtoD_v2, cuMemcpyAtoA_v2,
      cuMemcpyHtoAAsync_v2, cuMemcpyAtoHAsync_v2)
FORMS(Form::kPerThread, cuMemcpyHtoA_v2_ptds, cuMemcpyAtoH_v2_ptds, cuMemcpyDtoA_v2_ptds, cuMemcpyAtoD_v2_ptds,
      cuMemcpyAtoA_v2_ptds, cuMemcpyHtoAAsync_v2_ptsz, cuMemcpyAtoHAsync_v2_ptsz)
#undef FORMS
