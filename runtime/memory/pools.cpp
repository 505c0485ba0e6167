#include "runtime/memory/pools.h"

#include <algorithm>

#include "generated/driver_real.h"

namespace rota::memory {

Pools::Pool Pools::described(const api::CUmemLocation& location, api::CUmemAllocationType type) {
  const bool managed = type == api::CU_MEM_ALLOCATION_TYPE_MANAGED;
  switch (location.type) {
    case api::CU_MEM_LOCATION_TYPE_DEVICE:
      return {.device = location.id, .kind = managed ? Kind::kManagedPool : Kind::kAsync, .replaceable = !managed};
    case api::CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
      return {.device = location.localized.deviceId, .kind = managed ? Kind::kManagedPool : Kind::kAsync};
    case api::CU_MEM_LOCATION_TYPE_HOST:
    case api::CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case api::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return {.device = kNobody, .kind = Kind::kHostPool};
    default:
      return {.device = std::nullopt, .kind = managed ? Kind::kManagedPool : Kind::kAsync};
  }
}

Pools::Pool Pools::described(const api::CUmemPoolProps& properties) {
  Pool pool = described(properties.location, properties.allocType);
  if (properties.handleTypes != api::CU_MEM_HANDLE_TYPE_NONE || properties.usage != 0 ||
      properties.gpuDirectRDMACapable != 0) {
    pool.replaceable = false;
  }
  if (properties.maxSize != 0) pool.maximum = properties.maxSize;
  return pool;
}

void Pools::made(api::CUmemoryPool pool, const Pool& what) {
  const std::lock_guard lock(state_->mutex);
  state_->pools[pool] = what;
}

void Pools::named(api::CUmemoryPool pool, const Pool& what) {
  const std::lock_guard lock(state_->mutex);
  state_->pools.try_emplace(pool, what);
}

std::optional<Pools::Pool> Pools::forget(api::CUmemoryPool pool) {
  const std::lock_guard lock(state_->mutex);
  const auto known = state_->pools.find(pool);
  if (known == state_->pools.end()) return std::nullopt;
  const Pool what = known->second;
  state_->pools.erase(known);
  return what;
}

Pools::Pool Pools::look_up(api::CUmemoryPool pool, int device) {
  {
    const std::lock_guard lock(state_->mutex);
    if (const auto known = state_->pools.find(pool); known != state_->pools.end()) return known->second;
  }
  Pool what{.device = device, .kind = Kind::kAsync};
  // Before a default pool is asked for: a driver may make that only then, and give it the handle of one that was
  // destroyed.
  std::uint64_t threshold = 0;
  what.destroyed = real::cuMemPoolGetAttribute(pool, api::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) ==
                   api::CUDA_ERROR_INVALID_VALUE;
  if (what.destroyed) return what;
  int devices = 0;
  if (real::cuDeviceGetCount(&devices) != api::CUDA_SUCCESS) return what;
  for (int ordinal = 0; ordinal < std::min(devices, kMaxDevices); ++ordinal) {
    api::CUmemoryPool own = nullptr;
    if (real::cuDeviceGetDefaultMemPool(&own, ordinal) != api::CUDA_SUCCESS || own != pool) continue;
    what.device = ordinal;
    what.replaceable = true;
    made(pool, what);  // a default pool is never destroyed
    break;
  }
  return what;
}

Pools::Pool Pools::current(int device, api::CUmemoryPool* handle) {
  *handle = nullptr;
  if (device < 0 || device >= kMaxDevices) return {.device = device, .kind = Kind::kAsync};
  if (chosen_.load(std::memory_order_relaxed)) {
    if (real::cuDeviceGetMemPool(handle, device) == api::CUDA_SUCCESS) return look_up(*handle, device);
    return {.device = device, .kind = Kind::kAsync};
  }
  std::atomic<api::CUmemoryPool>& standard = default_[static_cast<std::size_t>(device)];
  *handle = standard.load(std::memory_order_relaxed);
  if (*handle == nullptr && real::cuDeviceGetDefaultMemPool(handle, device) == api::CUDA_SUCCESS) {
    standard.store(*handle, std::memory_order_relaxed);
  }
  return {.device = device, .kind = Kind::kAsync, .replaceable = *handle != nullptr};
}

}  // namespace rota::memory
