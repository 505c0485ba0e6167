// The exported copies and sets: each states only where its two sides are, and whether it waits.
#include <cstring>

#include "tools/simgpu/driver/copy/copies.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

uint64_t address(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

CUresult copy_2d(const CUDA_MEMCPY2D* parameters, bool asynchronous, CUstream stream, Form form) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_MEMCPY2D& p = *parameters;
  CUDA_MEMCPY3D box{};
  box.srcXInBytes = p.srcXInBytes;
  box.srcY = p.srcY;
  box.srcMemoryType = p.srcMemoryType;
  box.srcHost = p.srcHost;
  box.srcDevice = p.srcDevice;
  box.srcArray = p.srcArray;
  box.srcPitch = p.srcPitch;
  box.dstXInBytes = p.dstXInBytes;
  box.dstY = p.dstY;
  box.dstMemoryType = p.dstMemoryType;
  box.dstHost = p.dstHost;
  box.dstDevice = p.dstDevice;
  box.dstArray = p.dstArray;
  box.dstPitch = p.dstPitch;
  box.WidthInBytes = p.WidthInBytes;
  box.Height = p.Height;
  box.Depth = 1;
  return copy(box, asynchronous, stream, form);
}

CUresult copy_3d(const CUDA_MEMCPY3D* parameters, bool asynchronous, CUstream stream, Form form) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D box = *parameters;
  box.reserved0 = box.reserved1 = nullptr;  // see copies.h
  return copy(box, asynchronous, stream, form);
}

// The call names a context for each side. With unified addressing the address is enough for memory that a context owns.
CUresult check_contexts(CUcontext to, CUcontext from) {
  ContextPointer owner;
  ROTA_SIM_CHECK(driver().context_of(to, &owner));
  return driver().context_of(from, &owner);
}

CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                   bool asynchronous, CUstream stream, Form form) {
  ROTA_SIM_READY();
  ROTA_SIM_CHECK(check_contexts(to_context, from_context));
  CUDA_MEMCPY3D box = plain_copy(CU_MEMORYTYPE_DEVICE, to, CU_MEMORYTYPE_DEVICE, from, bytes);
  box.reserved0 = from_context;
  box.reserved1 = to_context;
  return copy(box, asynchronous, stream, form);
}

CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER* parameters, bool asynchronous, CUstream stream, Form form) {
  ROTA_SIM_READY();
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_MEMCPY3D_PEER& p = *parameters;
  ROTA_SIM_CHECK(check_contexts(p.dstContext, p.srcContext));
  CUDA_MEMCPY3D box{};
  box.srcXInBytes = p.srcXInBytes;
  box.srcY = p.srcY;
  box.srcZ = p.srcZ;
  box.srcLOD = p.srcLOD;
  box.srcMemoryType = p.srcMemoryType;
  box.srcHost = p.srcHost;
  box.srcDevice = p.srcDevice;
  box.srcArray = p.srcArray;
  box.srcPitch = p.srcPitch;
  box.srcHeight = p.srcHeight;
  box.dstXInBytes = p.dstXInBytes;
  box.dstY = p.dstY;
  box.dstZ = p.dstZ;
  box.dstLOD = p.dstLOD;
  box.dstMemoryType = p.dstMemoryType;
  box.dstHost = p.dstHost;
  box.dstDevice = p.dstDevice;
  box.dstArray = p.dstArray;
  box.dstPitch = p.dstPitch;
  box.dstHeight = p.dstHeight;
  box.WidthInBytes = p.WidthInBytes;
  box.Height = p.Height;
  box.Depth = p.Depth;
  box.reserved0 = p.srcContext;
  box.reserved1 = p.dstContext;
  return copy(box, asynchronous, stream, form);
}

CUDA_MEMSET_NODE_PARAMS rectangle(CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width,
                                  size_t height) {
  CUDA_MEMSET_NODE_PARAMS parameters = plain_set(to, value, element, width);
  parameters.height = height;
  parameters.pitch = pitch;
  return parameters;
}

}  // namespace

// Each copy in its forms: synchronous and asynchronous, legacy and per-thread default stream.
#define COPY_FORMS(sync_name, sync_thread_name, async_name, async_thread_name, TO, FROM, to_address, from_address,  \
                   to_type, from_type)                                                                              \
  ROTA_SIM_EXPORT(sync_name)(TO to, FROM from, size_t bytes) {                                                      \
    return copy(plain_copy(to_type, to_address, from_type, from_address, bytes), false, nullptr, Form::kLegacy);    \
  }                                                                                                                 \
  ROTA_SIM_EXPORT(sync_thread_name)(TO to, FROM from, size_t bytes) {                                               \
    return copy(plain_copy(to_type, to_address, from_type, from_address, bytes), false, nullptr, Form::kPerThread); \
  }                                                                                                                 \
  ROTA_SIM_EXPORT(async_name)(TO to, FROM from, size_t bytes, CUstream stream) {                                    \
    return copy(plain_copy(to_type, to_address, from_type, from_address, bytes), true, stream, Form::kLegacy);      \
  }                                                                                                                 \
  ROTA_SIM_EXPORT(async_thread_name)(TO to, FROM from, size_t bytes, CUstream stream) {                             \
    return copy(plain_copy(to_type, to_address, from_type, from_address, bytes), true, stream, Form::kPerThread);   \
  }

COPY_FORMS(cuMemcpy, cuMemcpy_ptds, cuMemcpyAsync, cuMemcpyAsync_ptsz, CUdeviceptr, CUdeviceptr, to, from,
           CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED)
COPY_FORMS(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, CUdeviceptr,
           const void*, to, address(from), CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST)
COPY_FORMS(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, void*, CUdeviceptr,
           address(to), from, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE)
COPY_FORMS(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr,
           CUdeviceptr, to, from, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE)
#undef COPY_FORMS

ROTA_SIM_EXPORT_FORMS(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D* p), copy_2d(p, false, nullptr, form))
ROTA_SIM_EXPORT_FORMS(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D* p), copy_2d(p, false, nullptr, form))
ROTA_SIM_EXPORT_FORMS(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D* p, CUstream stream),
                      copy_2d(p, true, stream, form))

ROTA_SIM_EXPORT_FORMS(cuMemcpy3D_v2, _ptds, (const CUDA_MEMCPY3D* p), copy_3d(p, false, nullptr, form))
ROTA_SIM_EXPORT_FORMS(cuMemcpy3DAsync_v2, _ptsz, (const CUDA_MEMCPY3D* p, CUstream stream),
                      copy_3d(p, true, stream, form))
ROTA_SIM_EXPORT_FORMS(cuMemcpy3DPeer, _ptds, (const CUDA_MEMCPY3D_PEER* p), copy_3d_peer(p, false, nullptr, form))
ROTA_SIM_EXPORT_FORMS(cuMemcpy3DPeerAsync, _ptsz, (const CUDA_MEMCPY3D_PEER* p, CUstream stream),
                      copy_3d_peer(p, true, stream, form))

ROTA_SIM_EXPORT_FORMS(cuMemcpyPeer, _ptds,
                      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
                      copy_peer(to, to_context, from, from_context, bytes, false, nullptr, form))
ROTA_SIM_EXPORT_FORMS(cuMemcpyPeerAsync, _ptsz,
                      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                       CUstream stream),
                      copy_peer(to, to_context, from, from_context, bytes, true, stream, form))

#define SET_FORMS(sync_name, sync_thread_name, async_name, async_thread_name, VALUE, element)      \
  ROTA_SIM_EXPORT(sync_name)(CUdeviceptr to, VALUE value, size_t count) {                          \
    return set(plain_set(to, value, element, count), false, nullptr, Form::kLegacy);               \
  }                                                                                                \
  ROTA_SIM_EXPORT(sync_thread_name)(CUdeviceptr to, VALUE value, size_t count) {                   \
    return set(plain_set(to, value, element, count), false, nullptr, Form::kPerThread);            \
  }                                                                                                \
  ROTA_SIM_EXPORT(async_name)(CUdeviceptr to, VALUE value, size_t count, CUstream stream) {        \
    return set(plain_set(to, value, element, count), true, stream, Form::kLegacy);                 \
  }                                                                                                \
  ROTA_SIM_EXPORT(async_thread_name)(CUdeviceptr to, VALUE value, size_t count, CUstream stream) { \
    return set(plain_set(to, value, element, count), true, stream, Form::kPerThread);              \
  }
SET_FORMS(cuMemsetD8_v2, cuMemsetD8_v2_ptds, cuMemsetD8Async, cuMemsetD8Async_ptsz, unsigned char, 1)
SET_FORMS(cuMemsetD16_v2, cuMemsetD16_v2_ptds, cuMemsetD16Async, cuMemsetD16Async_ptsz, unsigned short, 2)
SET_FORMS(cuMemsetD32_v2, cuMemsetD32_v2_ptds, cuMemsetD32Async, cuMemsetD32Async_ptsz, unsigned int, 4)
#undef SET_FORMS

#define SET_2D_FORMS(sync_name, sync_thread_name, async_name, async_thread_name, VALUE, element)              \
  ROTA_SIM_EXPORT(sync_name)(CUdeviceptr to, size_t pitch, VALUE value, size_t width, size_t height) {        \
    return set(rectangle(to, pitch, value, element, width, height), false, nullptr, Form::kLegacy);           \
  }                                                                                                           \
  ROTA_SIM_EXPORT(sync_thread_name)(CUdeviceptr to, size_t pitch, VALUE value, size_t width, size_t height) { \
    return set(rectangle(to, pitch, value, element, width, height), false, nullptr, Form::kPerThread);        \
  }                                                                                                           \
  ROTA_SIM_EXPORT(async_name)                                                                                 \
  (CUdeviceptr to, size_t pitch, VALUE value, size_t width, size_t height, CUstream stream) {                 \
    return set(rectangle(to, pitch, value, element, width, height), true, stream, Form::kLegacy);             \
  }                                                                                                           \
  ROTA_SIM_EXPORT(async_thread_name)                                                                          \
  (CUdeviceptr to, size_t pitch, VALUE value, size_t width, size_t height, CUstream stream) {                 \
    return set(rectangle(to, pitch, value, element, width, height), true, stream, Form::kPerThread);          \
  }
SET_2D_FORMS(cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds, cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz, unsigned char, 1)
SET_2D_FORMS(cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds, cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz, unsigned short, 2)
SET_2D_FORMS(cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds, cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz, unsigned int, 4)
#undef SET_2D_FORMS
