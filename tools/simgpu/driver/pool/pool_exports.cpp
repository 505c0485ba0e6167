// Stream-ordered allocation, and pools.
#include <cstring>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/graph/memory.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUmemLocation on_device(int gpu) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = gpu;
  return location;
}

bool same_place(const CUmemLocation& one, const CUmemLocation& other) {
  if (one.type != other.type) return false;
  bool numbered = one.type == CU_MEM_LOCATION_TYPE_DEVICE || one.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  return !numbered || one.id == other.id;
}

PoolPointer current_pool(int gpu) {
  CurrentPools& pools = driver().current_pools;
  if (mutated(Mutation::current_pools_are_not_used)) return pools.default_of(on_device(gpu), CurrentPools::kPinned);
  return pools.current_of(on_device(gpu), CurrentPools::kPinned);
}

CUresult allocate(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, bool from_current, CUstream handle, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  ContextPointer owner = driver().owner_of(*stream);  // for as long as this call lasts
  if (!owner) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  PoolPointer from = from_current ? current_pool(owner->gpu) : driver().pools.find(pool);
  if (!from || from->imported) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  if (CapturePointer capture = driver().captures.of(*stream)) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = on_device(owner->gpu);
    ROTA_SIM_CHECK(capture_allocation(stream, capture, properties, bytes, &address));
    *out = address;
    return CUDA_SUCCESS;
  }
  ROTA_SIM_CHECK(from->allocate(stream, bytes, &address));
  *out = address;
  return CUDA_SUCCESS;
}

CUresult free_in_stream(CUdeviceptr address, CUstream handle, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  if (address == 0) return CUDA_SUCCESS;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  auto allocation = driver().memory.find(address);
  if (!allocation || allocation->address != address || allocation->physical) return CUDA_ERROR_INVALID_VALUE;
  // Measured on driver 580.159: plain memory may be freed in stream order, managed memory may not; in a capture the
  // call is refused, and the capture continues.
  if (CapturePointer capture = driver().captures.of(*stream)) {
    return allocation->graph ? capture_free(stream, capture, address) : CUDA_ERROR_INVALID_VALUE;
  }
  if (allocation->graph) return free_graph_memory(address, stream);
  if (driver().variable_addresses.has(address)) return CUDA_ERROR_INVALID_VALUE;
  if (!allocation->pool) {
    if (allocation->kind == MemoryKind::kManaged) return CUDA_ERROR_NOT_SUPPORTED;
    if (allocation->kind != MemoryKind::kDevice || allocation->imported) return CUDA_ERROR_INVALID_VALUE;
  }
  Operation operation;
  if (!allocation->pool || allocation->imported || !allocation->pool->on_gpu()) {
    // The record stays until the stream reaches the free: work queued earlier may still use the memory. The mark
    // rejects a second free of the same address.
    uint64_t buffer = allocation->buffer_id;
    if (!driver().memory.mark_freeing(address, buffer)) return CUDA_ERROR_INVALID_VALUE;
    operation.run = [address, buffer](Context&) {
      if (auto removed = driver().memory.remove(address, buffer)) driver().release(*removed);
    };
    CUresult result = driver().submit(stream, std::move(operation), nullptr, Driver::kNoCapture);
    if (result != CUDA_SUCCESS) driver().memory.unmark_freeing(address, buffer);
    return result;
  }
  // The record is removed now, so that the same stream can reuse the memory; queued kernels reach it through the pool's
  // segment.
  if (!driver().memory.remove(address, allocation->buffer_id)) return CUDA_ERROR_INVALID_VALUE;
  auto pending = std::make_shared<Pool::Free>();
  operation.run = [pool = allocation->pool, pending](Context&) {
    pending->over.store(true);
    pool->reached();
  };
  CUresult result = driver().submit(stream, std::move(operation), &pending->task, Driver::kNoCapture);
  if (result != CUDA_SUCCESS) {
    if (!mutated(Mutation::refused_frees_take_the_memory)) driver().memory.add_in_segment(&*allocation);
    return result;
  }
  bool at_once = mutated(Mutation::frees_take_the_memory_at_once);
  if (at_once) pending->over.store(true);
  allocation->pool->freed(address, stream->id, std::move(pending));
  if (at_once) allocation->pool->trim(0);
  return CUDA_SUCCESS;
}

CUresult current_or_default(CUmemoryPool* out, const CUmemLocation* location, CUmemAllocationType type, bool current) {
  ROTA_SIM_READY();
  if (out == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!CurrentPools::valid(*location, type, driver().state().gpus())) {
    bool no_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE && !is_device(location->id);
    return no_device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
  }
  CurrentPools& pools = driver().current_pools;
  *out = (current ? pools.current_of(*location, type) : pools.default_of(*location, type))->handle();
  return CUDA_SUCCESS;
}

CUresult set_current(const CUmemLocation& location, CUmemAllocationType type, CUmemoryPool handle) {
  if (!CurrentPools::valid(location, type, driver().state().gpus())) return CUDA_ERROR_INVALID_VALUE;
  PoolPointer pool = driver().pools.find(handle);
  if (!pool || pool->imported || pool->properties.allocType != type) return CUDA_ERROR_INVALID_VALUE;
  if (!same_place(pool->properties.location, location)) return CUDA_ERROR_INVALID_VALUE;
  driver().current_pools.set_current(location, type, std::move(pool));
  return CUDA_SUCCESS;
}

// What an exporter tells an importer about one allocation.
struct SharedPointer {
  uint64_t mark;
  uint64_t id;
  uint64_t offset;  // in the pool's file
  uint64_t bytes;
  uint64_t segment_bytes;
};
static_assert(sizeof(SharedPointer) <= sizeof(CUmemPoolPtrExportData));
constexpr uint64_t kSharedPointerMark = 0x6c6f6f7075706773;

}  // namespace

ROTA_SIM_EXPORT_FORMS(cuMemAllocAsync, _ptsz, (CUdeviceptr * out, size_t bytes, CUstream stream),
                      allocate(out, bytes, nullptr, true, stream, form))
ROTA_SIM_EXPORT_FORMS(cuMemAllocFromPoolAsync, _ptsz,
                      (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream),
                      allocate(out, bytes, pool, false, stream, form))
ROTA_SIM_EXPORT_FORMS(cuMemFreeAsync, _ptsz, (CUdeviceptr address, CUstream stream),
                      free_in_stream(address, stream, form))

ROTA_SIM_EXPORT(cuDeviceGetDefaultMemPool)(CUmemoryPool* out, CUdevice device) {
  CUmemLocation location = on_device(device);
  return current_or_default(out, &location, CurrentPools::kPinned, false);
}
ROTA_SIM_EXPORT(cuDeviceGetMemPool)(CUmemoryPool* out, CUdevice device) {
  CUmemLocation location = on_device(device);
  return current_or_default(out, &location, CurrentPools::kPinned, true);
}
ROTA_SIM_EXPORT(cuDeviceSetMemPool)(CUdevice device, CUmemoryPool pool) {
  ROTA_SIM_READY();
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return set_current(on_device(device), CurrentPools::kPinned, pool);
}
ROTA_SIM_EXPORT(cuMemGetDefaultMemPool)(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  return current_or_default(out, location, type, false);
}
ROTA_SIM_EXPORT(cuMemGetMemPool)(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  return current_or_default(out, location, type, true);
}
ROTA_SIM_EXPORT(cuMemSetMemPool)(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  ROTA_SIM_READY();
  return location == nullptr ? CUDA_ERROR_INVALID_VALUE : set_current(*location, type, pool);
}

ROTA_SIM_EXPORT(cuMemPoolCreate)(CUmemoryPool* out, const CUmemPoolProps* properties) {
  ROTA_SIM_READY();
  if (out == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(Pool::check(*properties));
  PoolPointer pool = Pool::create(*properties);
  if (!pool) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = driver().pools.add(std::move(pool));
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuMemPoolDestroy)(CUmemoryPool handle) {
  ROTA_SIM_READY();
  PoolPointer pool = driver().pools.find(handle);
  if (!pool || driver().current_pools.is_default(pool.get())) return CUDA_ERROR_INVALID_VALUE;
  if (!driver().pools.remove(handle)) return CUDA_ERROR_INVALID_VALUE;
  if (!mutated(Mutation::destroyed_pools_stay_current)) driver().current_pools.forget(pool.get());
  pool->destroy();
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuMemPoolTrimTo)(CUmemoryPool handle, size_t keep) {
  ROTA_SIM_READY();
  PoolPointer pool = driver().pools.find(handle);
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  pool->trim(mutated(Mutation::pool_trim_keeps_nothing) ? 0 : keep);
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuMemPoolGetAttribute)(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  ROTA_SIM_READY();
  PoolPointer pool = driver().pools.find(handle);
  return !pool || value == nullptr ? CUDA_ERROR_INVALID_VALUE : pool->get(attribute, value);
}
ROTA_SIM_EXPORT(cuMemPoolSetAttribute)(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  ROTA_SIM_READY();
  PoolPointer pool = driver().pools.find(handle);
  return !pool || value == nullptr ? CUDA_ERROR_INVALID_VALUE : pool->set(attribute, value);
}

ROTA_SIM_EXPORT(cuMemPoolSetAccess)(CUmemoryPool handle, const CUmemAccessDesc* descriptions, size_t count) {
  ROTA_SIM_READY();
  PoolPointer pool = driver().pools.find(handle);
  if (!pool || descriptions == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t index = 0; index < count; ++index) {
    const CUmemAccessDesc& wanted = descriptions[index];
    if (wanted.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(wanted.location.id)) return CUDA_ERROR_INVALID_DEVICE;
    bool all = wanted.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    bool none = wanted.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
    if (!all && !none && wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_INVALID_VALUE;
    // A pool's own GPU cannot lose access.
    if (pool->on_gpu() && wanted.location.id == pool->gpu && !all) return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t index = 0; index < count; ++index) {
    pool->set_access(descriptions[index].location.id, descriptions[index].flags);
  }
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuMemPoolGetAccess)(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  ROTA_SIM_READY();
  PoolPointer pool = driver().pools.find(handle);
  if (!pool || flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      if (!is_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
      *flags = pool->access(location->id);
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      *flags = pool->on_gpu() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

ROTA_SIM_EXPORT(cuMemPoolExportToShareableHandle)
(void* out, CUmemoryPool handle, CUmemAllocationHandleType type, unsigned long long flags) {
  ROTA_SIM_READY();
  PoolPointer pool = driver().pools.find(handle);
  if (!pool || out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  return pool->export_file(static_cast<int*>(out));
}
ROTA_SIM_EXPORT(cuMemPoolImportFromShareableHandle)
(CUmemoryPool* out, void* handle, CUmemAllocationHandleType type, unsigned long long flags) {
  ROTA_SIM_READY();
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  // Of this type, the pointer is the descriptor's number itself.
  PoolPointer pool = Pool::import_file(static_cast<int>(reinterpret_cast<intptr_t>(handle)));
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  *out = driver().pools.add(std::move(pool));
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuMemPoolExportPointer)(CUmemPoolPtrExportData* out, CUdeviceptr address) {
  ROTA_SIM_READY();
  auto allocation = driver().memory.find(address);
  if (out == nullptr || !allocation || !allocation->pool) return CUDA_ERROR_INVALID_VALUE;
  Pool::Shared shared;
  if (!allocation->pool->find_shared(allocation->address, &shared)) return CUDA_ERROR_INVALID_VALUE;
  SharedPointer told{kSharedPointerMark, shared.id, shared.pages.offset, allocation->bytes, shared.segment_bytes};
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &told, sizeof told);
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuMemPoolImportPointer)(CUdeviceptr* out, CUmemoryPool handle, CUmemPoolPtrExportData* data) {
  ROTA_SIM_CONTEXT(context);
  PoolPointer pool = driver().pools.find(handle);
  if (out == nullptr || data == nullptr || !pool || !pool->imported) return CUDA_ERROR_INVALID_VALUE;
  SharedPointer told;
  std::memcpy(&told, data, sizeof told);
  if (told.mark != kSharedPointerMark || told.bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Pool::Shared shared{told.id, {-1, told.offset}, told.segment_bytes};
  uint64_t address = 0;
  ROTA_SIM_CHECK(pool->import_pointer(*context, shared, told.bytes, &address));
  *out = address;
  return CUDA_SUCCESS;
}
