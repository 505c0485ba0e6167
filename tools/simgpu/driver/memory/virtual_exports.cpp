// Virtual memory management: reservations, physical memory, mappings and access.
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

constexpr uint64_t kGranularity = AddressSpace::kLargePage;

bool whole(uint64_t value) {
  return value % kGranularity == 0;
}

bool known_access(CUmemAccess_flags flags) {
  return flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
         flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

// Waits for all work of the process.
void wait_for_everything() {
  for (const ContextPointer& context : driver().contexts.all()) driver().wait_for(*context);
}

// Measured on driver 580.159: unlike cuMemAlloc and cuMemFree, nothing here invalidates a capture, whatever its mode.
CUresult check_capture() {
  return mutated(Mutation::virtual_memory_is_unsafe_while_capturing) ? driver().check_unsafe_call() : CUDA_SUCCESS;
}

CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc& wanted) {
  bool read = wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
  bool write = wanted.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  switch (wanted.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return driver().memory.set_access(address, bytes, wanted.location.id, read, write);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return driver().memory.set_host_access(address, bytes, read, write);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

unsigned long long flags_of(bool read, bool write) {
  if (write) return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return read ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

CUresult map_arrays(CUstream handle, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  return CUDA_ERROR_NOT_SUPPORTED;  // sparse arrays are not simulated
}

}  // namespace

ROTA_SIM_EXPORT(cuMemGetAllocationGranularity)
(size_t* granularity, const CUmemAllocationProp* properties, CUmemAllocationGranularity_flags option) {
  ROTA_SIM_READY();
  bool known = option == CU_MEM_ALLOC_GRANULARITY_MINIMUM || option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
  if (granularity == nullptr || properties == nullptr || !known) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(PhysicalMemory::check(*properties));
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuMemAddressReserve)
(CUdeviceptr* out, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
  ROTA_SIM_READY();
  if (out == nullptr || flags != 0 || bytes == 0 || !whole(bytes)) return CUDA_ERROR_INVALID_VALUE;
  if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (mutated(Mutation::reservations_are_not_aligned)) alignment = 0;
  uint64_t address = driver().memory.add_reservation(bytes, alignment, hint);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = address;
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuMemAddressFree)(CUdeviceptr address, size_t bytes) {
  ROTA_SIM_READY();
  return driver().memory.remove_reservation(address, bytes);
}

ROTA_SIM_EXPORT(cuMemCreate)
(CUmemGenericAllocationHandle* out, size_t bytes, const CUmemAllocationProp* properties, unsigned long long flags) {
  ROTA_SIM_READY();
  if (out == nullptr || properties == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(check_capture());
  return driver().physical_memory.create(bytes, *properties, out);
}
ROTA_SIM_EXPORT(cuMemRelease)(CUmemGenericAllocationHandle handle) {
  ROTA_SIM_READY();
  return driver().physical_memory.release(handle);
}
ROTA_SIM_EXPORT(cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle* out, void* address) {
  ROTA_SIM_READY();
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto mapping = driver().memory.find(reinterpret_cast<uint64_t>(address));
  if (!mapping || !mapping->physical) return CUDA_ERROR_INVALID_VALUE;
  *out = driver().physical_memory.retain(mapping->physical);
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuMemGetAllocationPropertiesFromHandle)
(CUmemAllocationProp* out, CUmemGenericAllocationHandle handle) {
  ROTA_SIM_READY();
  PhysicalPointer physical = driver().physical_memory.find(handle);
  if (out == nullptr || !physical) return CUDA_ERROR_INVALID_VALUE;
  *out = physical->properties;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuMemMap)
(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  ROTA_SIM_READY();
  PhysicalPointer physical = driver().physical_memory.find(handle);
  if (!physical || flags != 0 || offset != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0 || !whole(address)) return CUDA_ERROR_INVALID_VALUE;
  // Measured on driver 580.159: only a whole handle can be mapped.
  if (bytes != physical->bytes) return CUDA_ERROR_NOT_SUPPORTED;
  ROTA_SIM_CHECK(check_capture());
  return driver().memory.map(address, bytes, physical);
}
ROTA_SIM_EXPORT(cuMemUnmap)(CUdeviceptr address, size_t bytes) {
  ROTA_SIM_READY();
  ROTA_SIM_CHECK(driver().memory.whole_mappings(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
  ROTA_SIM_CHECK(check_capture());
  // Measured on driver 580.159: does not wait for queued work; work that uses the memory fails.
  if (mutated(Mutation::unmapping_waits)) wait_for_everything();
  return driver().memory.unmap(address, bytes);
}
ROTA_SIM_EXPORT_FORMS(cuMemMapArrayAsync, _ptsz, (CUarrayMapInfo*, unsigned, CUstream stream), map_arrays(stream, form))

ROTA_SIM_EXPORT(cuMemSetAccess)
(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descriptions, size_t count) {
  ROTA_SIM_READY();
  if (descriptions == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!driver().memory.whole_mappings(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t index = 0; index < count; ++index) {
    const CUmemAccessDesc& wanted = descriptions[index];
    if (!known_access(wanted.flags)) return CUDA_ERROR_INVALID_VALUE;
    bool device = wanted.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (device && !is_device(wanted.location.id)) return CUDA_ERROR_INVALID_DEVICE;
  }
  ROTA_SIM_CHECK(check_capture());
  for (size_t index = 0; index < count; ++index) ROTA_SIM_CHECK(set_access(address, bytes, descriptions[index]));
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuMemGetAccess)(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  ROTA_SIM_READY();
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto mapping = driver().memory.find(address);
  if (!mapping || !mapping->physical) return CUDA_ERROR_INVALID_VALUE;
  switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      if (!is_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
      *flags = flags_of(mapping->accessible(location->id, false), mapping->accessible(location->id, true));
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      *flags = flags_of(mapping->host_readable, mapping->host_writable);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

ROTA_SIM_EXPORT(cuMemExportToShareableHandle)
(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags) {
  ROTA_SIM_READY();
  if (out == nullptr || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  return driver().physical_memory.export_file(handle, static_cast<int*>(out));
}
ROTA_SIM_EXPORT(cuMemImportFromShareableHandle)
(CUmemGenericAllocationHandle* out, void* handle, CUmemAllocationHandleType type) {
  ROTA_SIM_READY();
  if (out == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  // Of this type, the pointer is the descriptor's number itself.
  return driver().physical_memory.import_file(static_cast<int>(reinterpret_cast<intptr_t>(handle)), out);
}
