// Unified addressing: what a pointer is, advice and prefetching of managed memory.
#include <cstring>

#include "tools/simgpu/driver/driver.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto allocation = driver().memory.find(address);
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  bool host = allocation->kind == MemoryKind::kHost || allocation->kind == MemoryKind::kRegistered;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = allocation->context;
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = address;
      break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (allocation->kind == MemoryKind::kDevice) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<CUdeviceptr*>(data) = address;
      break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      *static_cast<unsigned*>(data) = 0;
      break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(data) = allocation->buffer_id;
      break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(data) = allocation->kind == MemoryKind::kManaged ? 1 : 0;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = allocation->gpu;
      break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<unsigned*>(data) = 0;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = allocation->address;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = allocation->bytes;
      break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<unsigned*>(data) = 1;
      break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned*>(data) = 0;
      break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(data) =
          allocation->pool ? allocation->pool->handle() : nullptr;
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

// Runs f(id, offset, bytes) for the managed memory of a range, which must lie in one allocation.
CUresult managed_range(CUdeviceptr address, size_t bytes, Allocation* allocation) {
  auto found = driver().memory.find(address);
  if (bytes == 0 || !found || found->kind != MemoryKind::kManaged) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > found->bytes - (address - found->address)) return CUDA_ERROR_INVALID_VALUE;
  *allocation = *found;
  return CUDA_SUCCESS;
}

CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, bool device) {
  ROTA_SIM_READY();
  Allocation allocation;
  ROTA_SIM_CHECK(managed_range(address, bytes, &allocation));
  switch (advice) {
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      driver().state().set_preferred(allocation.managed_id, device);
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      driver().state().set_preferred(allocation.managed_id, false);
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      return CUDA_SUCCESS;  // hints that the cost model does not use
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult prefetch(CUdeviceptr address, size_t bytes, bool to_device, int gpu, CUstream handle, Form form) {
  ROTA_SIM_CONTEXT(context);
  if (to_device && (gpu < 0 || gpu >= driver().state().gpus())) return CUDA_ERROR_INVALID_DEVICE;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  Allocation allocation;
  ROTA_SIM_CHECK(managed_range(address, bytes, &allocation));
  // An allocation migrates to the GPU that it was made on only; a prefetch to another is not simulated.
  if (to_device && gpu != allocation.gpu) return CUDA_ERROR_NOT_SUPPORTED;
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_EMPTY;
  operation.run = [address, bytes, to_device](Context& running) {
    int64_t nanoseconds = 0;
    driver().make_resident(address, bytes, to_device ? Access::kPrefetchToDevice : Access::kPrefetchToHost,
                           &nanoseconds);
    driver().occupy(running, to_device ? EngineKind::kHostToDevice : EngineKind::kDeviceToHost, nanoseconds);
  };
  return driver().submit(stream, std::move(operation));
}

CUresult prefetch_to(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream,
                     Form form) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return prefetch(address, bytes, true, location.id, stream, form);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return prefetch(address, bytes, false, 0, stream, form);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

constexpr int kHostOrdinal = -1;  // CU_DEVICE_CPU

}  // namespace

ROTA_SIM_EXPORT(cuPointerGetAttribute)(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  ROTA_SIM_READY();
  return pointer_attribute(data, attribute, address);
}

ROTA_SIM_EXPORT(cuPointerGetAttributes)
(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  ROTA_SIM_READY();
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned index = 0; index < count; ++index) {
    // Documented: an address that CUDA does not know is no error here; its attributes read as nothing.
    if (pointer_attribute(data[index], attributes[index], address) == CUDA_SUCCESS) continue;
    switch (attributes[index]) {
      case CU_POINTER_ATTRIBUTE_CONTEXT:
      case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        std::memset(data[index], 0, sizeof(uint64_t));
        break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(data[index]) = -2;
        break;
      default:
        std::memset(data[index], 0, sizeof(unsigned));
        break;
    }
  }
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuPointerSetAttribute)(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  ROTA_SIM_READY();
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  auto allocation = driver().memory.find(address);
  return allocation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ROTA_SIM_EXPORT(cuMemAdvise)(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  return advise(address, bytes, advice, device != kHostOrdinal);
}
ROTA_SIM_EXPORT(cuMemAdvise_v2)(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  return advise(address, bytes, advice, location.type == CU_MEM_LOCATION_TYPE_DEVICE);
}
ROTA_SIM_EXPORT(cuMemPrefetchAsync)(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  return prefetch(address, bytes, device != kHostOrdinal, device, stream, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuMemPrefetchAsync_ptsz)(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  return prefetch(address, bytes, device != kHostOrdinal, device, stream, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuMemPrefetchAsync_v2)
(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream) {
  return prefetch_to(address, bytes, location, flags, stream, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuMemPrefetchAsync_v2_ptsz)
(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream) {
  return prefetch_to(address, bytes, location, flags, stream, Form::kPerThread);
}
