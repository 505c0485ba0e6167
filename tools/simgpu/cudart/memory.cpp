// Memory of the runtime API: device, host, managed and stream-ordered allocations, pools, queries, sets.
#include "tools/simgpu/cudart/copy_parameters.h"
#include "tools/simgpu/cudart/forward.h"

using namespace rota::sim::cudart;  // NOLINT

namespace {

// cudaPointerAttributes; type: 0 unregistered, 1 host, 2 device, 3 managed.
struct PointerAttributes {
  int type, device;
  void *device_pointer, *host_pointer;
  long reserved[8];
};
static_assert(sizeof(PointerAttributes) == 88);

int allocate_pitched(void** out, size_t* pitch, size_t width, size_t rows) {
  *out = nullptr;
  *pitch = 0;
  if (width == 0 || rows == 0) return ensure_context();
  return attempt(&Driver::cuMemAllocPitch_v2, reinterpret_cast<CUdeviceptr*>(out), pitch, width, rows, 4U);
}

// Setting a box sets its rows, slice by slice unless the slices are contiguous.
template <class Set>
int set_box(const PitchedPointer& box, const Extent& extent, Set set) {
  if (extent.width == 0 || extent.height == 0 || extent.depth == 0) return done(ensure_context());
  if (box.memory == nullptr) return done(kInvalidValue);
  if (box.height == extent.height) return set(address(box.memory), extent.height * extent.depth);
  for (size_t slice = 0; slice < extent.depth; ++slice) {
    if (int error = set(address(box.memory) + slice * box.pitch * box.height, extent.height); error != kSuccess) {
      return error;
    }
  }
  return kSuccess;
}

}  // namespace

ROTA_CUDART_EXPORT int cudaMalloc(void** out, size_t bytes) {
  if (out == nullptr) return done(kInvalidValue);
  *out = nullptr;
  if (bytes == 0) return done(ensure_context());
  return call(&Driver::cuMemAlloc_v2, reinterpret_cast<CUdeviceptr*>(out), bytes);
}
ROTA_FORWARD(3, cudaMallocManaged, cuMemAllocManaged)
ROTA_CUDART_EXPORT int cudaMallocPitch(void** out, size_t* pitch, size_t width, size_t height) {
  if (out == nullptr || pitch == nullptr) return done(kInvalidValue);
  return done(allocate_pitched(out, pitch, width, height));
}
ROTA_CUDART_EXPORT int cudaMalloc3D(PitchedPointer* out, Extent extent) {
  if (out == nullptr) return done(kInvalidValue);
  *out = {nullptr, 0, extent.width, extent.height};
  size_t rows = 0;
  if (__builtin_mul_overflow(extent.height, extent.depth, &rows)) return done(kInvalidValue);
  return done(allocate_pitched(&out->memory, &out->pitch, extent.width, rows));
}
ROTA_CUDART_EXPORT int cudaHostAlloc(void** out, size_t bytes, unsigned flags) {
  if (out == nullptr) return done(kInvalidValue);
  *out = nullptr;
  if (bytes == 0) return done(ensure_context());
  return call(&Driver::cuMemHostAlloc, out, bytes, flags);
}
ROTA_CUDART_EXPORT int cudaMallocHost(void** out, size_t bytes) {
  if (out == nullptr) return done(kInvalidValue);
  *out = nullptr;
  if (bytes == 0) return done(ensure_context());
  return call(&Driver::cuMemHostAlloc, out, bytes, 0U);
}
ROTA_FORWARD(3, cudaHostRegister, cuMemHostRegister_v2)
ROTA_FORWARD(1, cudaHostUnregister, cuMemHostUnregister)
ROTA_FORWARD(3, cudaHostGetDevicePointer, cuMemHostGetDevicePointer_v2)
ROTA_FORWARD(2, cudaHostGetFlags, cuMemHostGetFlags)
ROTA_CUDART_EXPORT int cudaFree(void* memory) {
  return memory == nullptr ? done(ensure_context()) : call(&Driver::cuMemFree_v2, address(memory));
}
ROTA_CUDART_EXPORT int cudaFreeHost(void* memory) {
  return memory == nullptr ? done(ensure_context()) : call(&Driver::cuMemFreeHost, memory);
}
ROTA_FORWARD(2, cudaMemGetInfo, cuMemGetInfo_v2)

ROTA_FORWARD_FORMS(3, cudaMallocAsync, cuMemAllocAsync)
ROTA_FORWARD_FORMS(2, cudaFreeAsync, cuMemFreeAsync)
ROTA_FORWARD_FORMS(4, cudaMallocFromPoolAsync, cuMemAllocFromPoolAsync)
ROTA_FORWARD(2, cudaMemPoolCreate, cuMemPoolCreate)
ROTA_FORWARD(1, cudaMemPoolDestroy, cuMemPoolDestroy)
ROTA_FORWARD(2, cudaMemPoolTrimTo, cuMemPoolTrimTo)
ROTA_FORWARD(3, cudaMemPoolSetAttribute, cuMemPoolSetAttribute)
ROTA_FORWARD(3, cudaMemPoolGetAttribute, cuMemPoolGetAttribute)
ROTA_FORWARD(3, cudaMemPoolSetAccess, cuMemPoolSetAccess)
ROTA_FORWARD(3, cudaMemPoolGetAccess, cuMemPoolGetAccess)
ROTA_FORWARD(4, cudaMemPoolExportToShareableHandle, cuMemPoolExportToShareableHandle)
ROTA_FORWARD(4, cudaMemPoolImportFromShareableHandle, cuMemPoolImportFromShareableHandle)
ROTA_FORWARD(2, cudaMemPoolExportPointer, cuMemPoolExportPointer)
ROTA_FORWARD(3, cudaMemPoolImportPointer, cuMemPoolImportPointer)
ROTA_FORWARD(3, cudaMemGetDefaultMemPool, cuMemGetDefaultMemPool)
ROTA_FORWARD(3, cudaMemGetMemPool, cuMemGetMemPool)
ROTA_FORWARD(3, cudaMemSetMemPool, cuMemSetMemPool)

ROTA_FORWARD(2, cudaIpcGetMemHandle, cuIpcGetMemHandle)
ROTA_FORWARD(3, cudaIpcOpenMemHandle, cuIpcOpenMemHandle_v2)
ROTA_FORWARD(1, cudaIpcCloseMemHandle, cuIpcCloseMemHandle)

ROTA_FORWARD(4, cudaMemAdvise, cuMemAdvise_v2)
ROTA_FORWARD(5, cudaMemPrefetchAsync, cuMemPrefetchAsync_v2)
ROTA_FORWARD(5, cudaMemPrefetchAsync_ptsz, cuMemPrefetchAsync_v2_ptsz)
ROTA_FORWARD_FORMS(8, cudaMemPrefetchBatchAsync, cuMemPrefetchBatchAsync)
ROTA_FORWARD_FORMS(5, cudaMemDiscardBatchAsync, cuMemDiscardBatchAsync)
ROTA_FORWARD_FORMS(8, cudaMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync)
ROTA_FORWARD(5, cudaMemRangeGetAttribute, cuMemRangeGetAttribute)
ROTA_FORWARD(6, cudaMemRangeGetAttributes, cuMemRangeGetAttributes)

ROTA_CUDART_EXPORT int cudaPointerGetAttributes(PointerAttributes* out, const void* pointer) {
  if (out == nullptr) return done(kInvalidValue);
  CUmemorytype type{};
  unsigned managed = 0;
  int device = -2;  // cudaInvalidDeviceId: of no device
  CUdeviceptr on_device = 0;
  void* on_host = nullptr;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                 CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void* to[] = {&type, &managed, &device, &on_device, &on_host};
  int error = call(&Driver::cuPointerGetAttributes, 5U, which, static_cast<void**>(to), address(pointer));
  if (error != kSuccess) return error;
  *out = {};
  out->type = managed != 0 ? 3 : static_cast<int>(type);  // the driver uses the same numbers for host and device memory
  if (out->type == 0) {
    out->device = -2;
    out->host_pointer = const_cast<void*>(pointer);
    return kSuccess;
  }
  out->device = device;
  out->device_pointer = reinterpret_cast<void*>(on_device);
  out->host_pointer = on_host;
  return kSuccess;
}

#define ROTA_SETS(ptds, ptsz)                                                                                          \
  ROTA_CUDART_EXPORT int cudaMemset##ptds(void* to, int value, size_t bytes) {                                         \
    return call(&Driver::cuMemsetD8_v2##ptds, address(to), static_cast<unsigned char>(value), bytes);                  \
  }                                                                                                                    \
  ROTA_CUDART_EXPORT int cudaMemsetAsync##ptsz(void* to, int value, size_t bytes, CUstream stream) {                   \
    return call(&Driver::cuMemsetD8Async##ptsz, address(to), static_cast<unsigned char>(value), bytes, stream);        \
  }                                                                                                                    \
  ROTA_CUDART_EXPORT int cudaMemset2D##ptds(void* to, size_t pitch, int value, size_t width, size_t height) {          \
    return call(&Driver::cuMemsetD2D8_v2##ptds, address(to), pitch, static_cast<unsigned char>(value), width, height); \
  }                                                                                                                    \
  ROTA_CUDART_EXPORT int cudaMemset2DAsync##ptsz(void* to, size_t pitch, int value, size_t width, size_t height,       \
                                                 CUstream stream) {                                                    \
    return call(&Driver::cuMemsetD2D8Async##ptsz, address(to), pitch, static_cast<unsigned char>(value), width,        \
                height, stream);                                                                                       \
  }                                                                                                                    \
  ROTA_CUDART_EXPORT int cudaMemset3D##ptds(PitchedPointer box, int value, Extent extent) {                            \
    return set_box(box, extent, [&](CUdeviceptr to, size_t rows) {                                                     \
      return call(&Driver::cuMemsetD2D8_v2##ptds, to, box.pitch, static_cast<unsigned char>(value), extent.width,      \
                  rows);                                                                                               \
    });                                                                                                                \
  }                                                                                                                    \
  ROTA_CUDART_EXPORT int cudaMemset3DAsync##ptsz(PitchedPointer box, int value, Extent extent, CUstream stream) {      \
    return set_box(box, extent, [&](CUdeviceptr to, size_t rows) {                                                     \
      return call(&Driver::cuMemsetD2D8Async##ptsz, to, box.pitch, static_cast<unsigned char>(value), extent.width,    \
                  rows, stream);                                                                                       \
    });                                                                                                                \
  }
ROTA_SETS(, )
ROTA_SETS(_ptds, _ptsz)
