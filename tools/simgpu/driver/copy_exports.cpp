// The exported copies and sets: each only says where its two sides lie, and whether it waits.
#include <cstring>

#include "tools/simgpu/driver/copies.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CopyRequest row(uint64_t to, Side to_side, uint64_t from, Side from_side, size_t bytes) {
  CopyRequest request;
  request.to = to;
  request.to_side = to_side;
  request.from = from;
  request.from_side = from_side;
  request.width = bytes;
  return request;
}

uint64_t address(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

// One side of a 2D copy: its first byte, or false if it is an array (not simulated) or makes no sense.
bool side(CUmemorytype type, const void* host, CUdeviceptr device, size_t x, size_t y, size_t pitch, uint64_t* start,
          Side* where) {
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      *start = address(host);
      *where = Side::kHost;
      break;
    case CU_MEMORYTYPE_DEVICE:
      *start = device;
      *where = Side::kDevice;
      break;
    case CU_MEMORYTYPE_UNIFIED:
      *start = device;
      *where = Side::kAny;
      break;
    default:
      return false;
  }
  *start += y * pitch + x;
  return true;
}

CUresult copy_2d(const CUDA_MEMCPY2D* parameters, bool asynchronous, CUstream stream, Form form) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_MEMCPY2D& p = *parameters;
  CopyRequest request;
  request.width = p.WidthInBytes;
  request.height = p.Height;
  request.to_pitch = p.dstPitch != 0 ? p.dstPitch : p.WidthInBytes;
  request.from_pitch = p.srcPitch != 0 ? p.srcPitch : p.WidthInBytes;
  if (p.dstMemoryType == CU_MEMORYTYPE_ARRAY || p.srcMemoryType == CU_MEMORYTYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
  bool known = side(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstXInBytes, p.dstY, request.to_pitch, &request.to,
                    &request.to_side) &&
               side(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcXInBytes, p.srcY, request.from_pitch, &request.from,
                    &request.from_side);
  return known ? copy(request, asynchronous, stream, form) : CUDA_ERROR_INVALID_VALUE;
}

CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                   bool asynchronous, CUstream stream, Form form) {
  ROTA_SIM_READY();
  ContextPointer to_owner;
  ContextPointer from_owner;
  ROTA_SIM_CHECK(driver().context_of(to_context, &to_owner));
  ROTA_SIM_CHECK(driver().context_of(from_context, &from_owner));
  return copy(row(to, Side::kDevice, from, Side::kDevice, bytes), asynchronous, stream, form);
}

SetRequest line(CUdeviceptr to, unsigned value, unsigned element, size_t count) {
  SetRequest request;
  request.to = to;
  request.value = value;
  request.element = element;
  request.width = count;
  return request;
}

SetRequest rectangle(CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width, size_t height) {
  SetRequest request = line(to, value, element, width);
  request.height = height;
  request.pitch = pitch;
  return request;
}

}  // namespace

// Each copy in its forms: synchronous and asynchronous, legacy and per-thread default stream.
#define COPY_FORMS(sync_name, sync_thread_name, async_name, async_thread_name, TO, FROM, to_address, from_address, \
                   to_side, from_side)                                                                             \
  ROTA_SIM_EXPORT(sync_name)(TO to, FROM from, size_t bytes) {                                                     \
    return copy(row(to_address, to_side, from_address, from_side, bytes), false, nullptr, Form::kLegacy);          \
  }                                                                                                                \
  ROTA_SIM_EXPORT(sync_thread_name)(TO to, FROM from, size_t bytes) {                                              \
    return copy(row(to_address, to_side, from_address, from_side, bytes), false, nullptr, Form::kPerThread);       \
  }                                                                                                                \
  ROTA_SIM_EXPORT(async_name)(TO to, FROM from, size_t bytes, CUstream stream) {                                   \
    return copy(row(to_address, to_side, from_address, from_side, bytes), true, stream, Form::kLegacy);            \
  }                                                                                                                \
  ROTA_SIM_EXPORT(async_thread_name)(TO to, FROM from, size_t bytes, CUstream stream) {                            \
    return copy(row(to_address, to_side, from_address, from_side, bytes), true, stream, Form::kPerThread);         \
  }

COPY_FORMS(cuMemcpy, cuMemcpy_ptds, cuMemcpyAsync, cuMemcpyAsync_ptsz, CUdeviceptr, CUdeviceptr, to, from, Side::kAny,
           Side::kAny)
COPY_FORMS(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, CUdeviceptr,
           const void*, to, address(from), Side::kDevice, Side::kHost)
COPY_FORMS(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, void*, CUdeviceptr,
           address(to), from, Side::kHost, Side::kDevice)
COPY_FORMS(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr,
           CUdeviceptr, to, from, Side::kDevice, Side::kDevice)
#undef COPY_FORMS

ROTA_SIM_EXPORT(cuMemcpy2D_v2)(const CUDA_MEMCPY2D* p) {
  return copy_2d(p, false, nullptr, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuMemcpy2D_v2_ptds)(const CUDA_MEMCPY2D* p) {
  return copy_2d(p, false, nullptr, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuMemcpy2DUnaligned_v2)(const CUDA_MEMCPY2D* p) {
  return copy_2d(p, false, nullptr, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuMemcpy2DUnaligned_v2_ptds)(const CUDA_MEMCPY2D* p) {
  return copy_2d(p, false, nullptr, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuMemcpy2DAsync_v2)(const CUDA_MEMCPY2D* p, CUstream stream) {
  return copy_2d(p, true, stream, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuMemcpy2DAsync_v2_ptsz)(const CUDA_MEMCPY2D* p, CUstream stream) {
  return copy_2d(p, true, stream, Form::kPerThread);
}

ROTA_SIM_EXPORT(cuMemcpyPeer)
(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) {
  return copy_peer(to, to_context, from, from_context, bytes, false, nullptr, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuMemcpyPeer_ptds)
(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) {
  return copy_peer(to, to_context, from, from_context, bytes, false, nullptr, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuMemcpyPeerAsync)
(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream) {
  return copy_peer(to, to_context, from, from_context, bytes, true, stream, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuMemcpyPeerAsync_ptsz)
(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream) {
  return copy_peer(to, to_context, from, from_context, bytes, true, stream, Form::kPerThread);
}

#define SET_FORMS(sync_name, sync_thread_name, async_name, async_thread_name, VALUE, element)      \
  ROTA_SIM_EXPORT(sync_name)(CUdeviceptr to, VALUE value, size_t count) {                          \
    return set(line(to, value, element, count), false, nullptr, Form::kLegacy);                    \
  }                                                                                                \
  ROTA_SIM_EXPORT(sync_thread_name)(CUdeviceptr to, VALUE value, size_t count) {                   \
    return set(line(to, value, element, count), false, nullptr, Form::kPerThread);                 \
  }                                                                                                \
  ROTA_SIM_EXPORT(async_name)(CUdeviceptr to, VALUE value, size_t count, CUstream stream) {        \
    return set(line(to, value, element, count), true, stream, Form::kLegacy);                      \
  }                                                                                                \
  ROTA_SIM_EXPORT(async_thread_name)(CUdeviceptr to, VALUE value, size_t count, CUstream stream) { \
    return set(line(to, value, element, count), true, stream, Form::kPerThread);                   \
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
