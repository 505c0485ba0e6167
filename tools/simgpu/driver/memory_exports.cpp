// Allocation, release and what is known about addresses.
#include <algorithm>
#include <cstring>

#include "tools/simgpu/driver/driver.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUresult allocate(CUdeviceptr* out, size_t bytes) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  uint64_t address = 0;
  ROTA_SIM_CHECK(driver().allocate_device(*context, bytes, false, &address));
  *out = address;
  return CUDA_SUCCESS;
}

CUresult allocate_managed(CUdeviceptr* out, size_t bytes, unsigned flags) {
  ROTA_SIM_CONTEXT(context);
  bool known = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST;
  if (out == nullptr || bytes == 0 || !known) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  Allocation allocation;
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kManaged;
  allocation.gpu = context->gpu;
  allocation.context = context->handle();
  allocation.flags = flags;
  allocation.managed_id = driver().state().add_managed(context->gpu, bytes);
  if (allocation.managed_id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!driver().memory.add_mapped(&allocation)) {
    driver().state().remove_managed(allocation.managed_id);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = allocation.address;
  return CUDA_SUCCESS;
}

CUresult allocate_pitch(CUdeviceptr* out, size_t* pitch, size_t width, size_t height, unsigned element) {
  bool known = element == 4 || element == 8 || element == 16;
  if (out == nullptr || pitch == nullptr || width == 0 || height == 0 || !known) return CUDA_ERROR_INVALID_VALUE;
  size_t row = (width + AddressSpace::kGranularity - 1) / AddressSpace::kGranularity * AddressSpace::kGranularity;
  if (row < width || row > SIZE_MAX / height) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(allocate(out, row * height));
  *pitch = row;
  return CUDA_SUCCESS;
}

CUresult free_device(CUdeviceptr address) {
  ROTA_SIM_CONTEXT(context);
  if (address == 0) return CUDA_SUCCESS;
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  return driver().free_memory(address, false, true);
}

CUresult allocate_host(void** out, size_t bytes, unsigned flags) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || bytes == 0 || (flags & ~7U) != 0) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  Allocation allocation;
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kHost;
  allocation.gpu = context->gpu;
  allocation.context = context->handle();
  allocation.flags = flags;
  if (!driver().memory.add_mapped(&allocation)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<void*>(allocation.address);
  return CUDA_SUCCESS;
}

CUresult register_host(void* address, size_t bytes, unsigned flags) {
  ROTA_SIM_CONTEXT(context);
  if (address == nullptr || bytes == 0 || (flags & ~15U) != 0) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  Allocation allocation;
  allocation.address = reinterpret_cast<uint64_t>(address);
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kRegistered;
  allocation.gpu = context->gpu;
  allocation.context = context->handle();
  allocation.flags = flags;
  return driver().memory.add_registered(&allocation) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult allocate_async(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream handle, Form form) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  std::shared_ptr<Pool> from = pool == nullptr
                                   ? driver().devices[static_cast<size_t>(stream->context->gpu)].default_pool
                                   : driver().pools.find(pool);
  if (!from) return CUDA_ERROR_INVALID_VALUE;
  if (driver().captures.any()) {
    std::lock_guard lock(driver().captures.mutex);
    if (stream->capture) {  // memory nodes are not simulated
      stream->capture->invalidated = true;
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  // The memory exists at once; a real pool may hand out memory whose last user is still running, in stream order.
  uint64_t address = 0;
  ROTA_SIM_CHECK(driver().allocate_device(*stream->context, bytes, true, &address));
  uint64_t used = from->used.fetch_add(bytes) + bytes;
  uint64_t high = from->used_high.load();
  while (high < used && !from->used_high.compare_exchange_weak(high, used)) {
  }
  *out = address;
  return CUDA_SUCCESS;
}

CUresult free_async(CUdeviceptr address, CUstream handle, Form form) {
  ROTA_SIM_CONTEXT(context);
  if (address == 0) return CUDA_SUCCESS;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  auto allocation = driver().memory.find(address);
  if (!allocation || allocation->address != address) return CUDA_ERROR_INVALID_VALUE;
  // Measured on driver 580.159: plain memory may be freed in stream order, managed memory may not; in a capture the
  // call is refused, and the capture goes on.
  if (allocation->kind == MemoryKind::kManaged) return CUDA_ERROR_NOT_SUPPORTED;
  if (allocation->kind != MemoryKind::kDevice) return CUDA_ERROR_INVALID_VALUE;
  if (driver().captures.any()) {
    std::lock_guard lock(driver().captures.mutex);
    if (stream->capture) return CUDA_ERROR_INVALID_VALUE;
  }
  // The record stays until the stream gets there: work queued before may still use the memory. The mark keeps a second
  // free of the same address out.
  if (!driver().memory.mark_freeing(address)) return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  operation.run = [address](Context&) { driver().free_memory(address, false, false); };
  if (allocation->from_pool) {
    driver().devices[static_cast<size_t>(allocation->gpu)].default_pool->used.fetch_sub(allocation->bytes);
  }
  return driver().submit(stream, std::move(operation));
}

CUresult memory_info(size_t* free, size_t* total) {
  ROTA_SIM_CONTEXT(context);
  if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MemoryUse use = driver().state().use(context->gpu);
  uint64_t used = std::min(use.plain + use.managed_resident, use.capacity);
  *free = use.capacity - used;
  *total = use.capacity;
  return CUDA_SUCCESS;
}

CUresult address_range(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  ROTA_SIM_CONTEXT(context);
  auto allocation = driver().memory.find(address);
  if (!allocation) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = allocation->address;
  if (size != nullptr) *size = allocation->bytes;
  return CUDA_SUCCESS;
}

}  // namespace

ROTA_SIM_EXPORT(cuMemAlloc_v2)(CUdeviceptr* out, size_t bytes) {
  return allocate(out, bytes);
}
ROTA_SIM_EXPORT(cuMemAllocManaged)(CUdeviceptr* out, size_t bytes, unsigned flags) {
  return allocate_managed(out, bytes, flags);
}
ROTA_SIM_EXPORT(cuMemAllocPitch_v2)(CUdeviceptr* out, size_t* pitch, size_t width, size_t height, unsigned element) {
  return allocate_pitch(out, pitch, width, height, element);
}
ROTA_SIM_EXPORT(cuMemFree_v2)(CUdeviceptr address) {
  return free_device(address);
}

ROTA_SIM_EXPORT(cuMemAllocAsync)(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return allocate_async(out, bytes, nullptr, stream, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuMemAllocAsync_ptsz)(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return allocate_async(out, bytes, nullptr, stream, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuMemAllocFromPoolAsync)(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate_async(out, bytes, pool, stream, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuMemAllocFromPoolAsync_ptsz)(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate_async(out, bytes, pool, stream, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuMemFreeAsync)(CUdeviceptr address, CUstream stream) {
  return free_async(address, stream, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuMemFreeAsync_ptsz)(CUdeviceptr address, CUstream stream) {
  return free_async(address, stream, Form::kPerThread);
}

ROTA_SIM_EXPORT(cuMemPoolTrimTo)(CUmemoryPool pool, size_t) {
  ROTA_SIM_READY();
  return driver().pools.find(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;  // nothing unused is kept
}
ROTA_SIM_EXPORT(cuMemPoolGetAttribute)(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  ROTA_SIM_READY();
  auto pool = driver().pools.find(handle);
  if (!pool || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) = 1;
      break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *static_cast<uint64_t*>(value) = pool->release_threshold;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *static_cast<uint64_t*>(value) = pool->used.load();
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *static_cast<uint64_t*>(value) = pool->used_high.load();
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuMemPoolSetAttribute)(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  ROTA_SIM_READY();
  auto pool = driver().pools.find(handle);
  if (!pool || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) return CUDA_ERROR_NOT_SUPPORTED;
  pool->release_threshold = *static_cast<uint64_t*>(value);
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuMemHostAlloc)(void** out, size_t bytes, unsigned flags) {
  return allocate_host(out, bytes, flags);
}
ROTA_SIM_EXPORT(cuMemAllocHost_v2)(void** out, size_t bytes) {
  return allocate_host(out, bytes, 0);
}
ROTA_SIM_EXPORT(cuMemFreeHost)(void* address) {
  ROTA_SIM_CONTEXT(context);
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  return driver().free_memory(reinterpret_cast<uint64_t>(address), true, true);
}
ROTA_SIM_EXPORT(cuMemHostRegister_v2)(void* address, size_t bytes, unsigned flags) {
  return register_host(address, bytes, flags);
}
ROTA_SIM_EXPORT(cuMemHostUnregister)(void* address) {
  ROTA_SIM_CONTEXT(context);
  auto start = reinterpret_cast<uint64_t>(address);
  auto allocation = driver().memory.find(start);
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!allocation || allocation->address != start || allocation->kind != MemoryKind::kRegistered) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  driver().memory.remove(start);
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuMemHostGetDevicePointer_v2)(CUdeviceptr* out, void* address, unsigned flags) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  auto allocation = driver().memory.find(reinterpret_cast<uint64_t>(address));
  bool host = allocation && (allocation->kind == MemoryKind::kHost || allocation->kind == MemoryKind::kRegistered);
  if (!host) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<uint64_t>(address);
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuMemHostGetFlags)(unsigned* flags, void* address) {
  ROTA_SIM_CONTEXT(context);
  auto allocation = driver().memory.find(reinterpret_cast<uint64_t>(address));
  if (flags == nullptr || !allocation || allocation->kind != MemoryKind::kHost) return CUDA_ERROR_INVALID_VALUE;
  *flags = allocation->flags;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuMemGetInfo_v2)(size_t* free, size_t* total) {
  return memory_info(free, total);
}
ROTA_SIM_EXPORT(cuMemGetAddressRange_v2)(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  return address_range(base, size, address);
}
