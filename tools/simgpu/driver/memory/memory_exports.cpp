// Allocation, release and address queries.
#include <algorithm>
#include <cstring>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/graph/memory.h"
#include "tools/simgpu/driver/memory/host_pages.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUresult allocate(CUdeviceptr* out, size_t bytes) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  uint64_t address = 0;
  int64_t pushing_out = 0;
  ROTA_SIM_CHECK(driver().allocate_device(*context, bytes, &address, &pushing_out));
  driver().push_out(*context, pushing_out);
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
  size_t row = round_up(width, AddressSpace::kGranularity);
  if (row < width || row > SIZE_MAX / height) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(allocate(out, row * height));
  *pitch = row;
  return CUDA_SUCCESS;
}

// The current context, which a free does not need (measured on an H100, driver 580.159).
CUresult context_of_free(ContextPointer* context) {
  const CUresult result = driver().current(context);
  const bool none = result == CUDA_ERROR_INVALID_CONTEXT && !mutated(Mutation::frees_need_a_context);
  return none ? CUDA_SUCCESS : result;
}

CUresult free_device(CUdeviceptr address) {
  ROTA_SIM_READY();
  ContextPointer context;
  ROTA_SIM_CHECK(context_of_free(&context));
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  if (address == 0) return CUDA_SUCCESS;
  if (is_graph_memory(address)) return free_graph_memory(address, context);
  return driver().free_memory(context, address, false);
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
  if (driver().memory.in_device_window(allocation.address) || !host_pages_exist(allocation.address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kRegistered;
  allocation.gpu = context->gpu;
  allocation.context = context->handle();
  allocation.flags = flags;
  return driver().memory.add_registered(&allocation) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
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

ROTA_SIM_EXPORT(cuMemHostAlloc)(void** out, size_t bytes, unsigned flags) {
  return allocate_host(out, bytes, flags);
}
ROTA_SIM_EXPORT(cuMemAllocHost_v2)(void** out, size_t bytes) {
  return allocate_host(out, bytes, 0);
}
ROTA_SIM_EXPORT(cuMemFreeHost)(void* address) {
  ROTA_SIM_READY();
  ContextPointer context;
  ROTA_SIM_CHECK(context_of_free(&context));
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  return driver().free_memory(context, reinterpret_cast<uint64_t>(address), true);
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
  if (!mutated(Mutation::unregistering_does_not_wait)) {
    for (const ContextPointer& each : driver().contexts.all()) {
      const bool own = each->handle() == allocation->context;
      if (own || mutated(Mutation::unregistering_waits_for_every_context)) driver().wait_for(*each);
    }
  }
  driver().memory.remove(start, allocation->buffer_id);
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
