// A pool's attributes, and which pool is current where.
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/pool/pool.h"

namespace rota::sim {

CUresult Pool::get(CUmemPool_attribute attribute, void* value) {
  auto* number = static_cast<int*>(value);
  auto* bytes = static_cast<uint64_t*>(value);
  std::lock_guard lock(mutex_);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      *number = follow_events_;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      *number = opportunistic_;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *number = internal_dependencies_;
      break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *bytes = threshold_;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *bytes = reserved_;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *bytes = used_;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *bytes = reserved_high_;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *bytes = used_high_;
      break;
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
      *number = properties.allocType;
      break;
    case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
      *number = properties.handleTypes;
      break;
    case CU_MEMPOOL_ATTR_LOCATION_ID:
      *number = properties.location.id;
      break;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE:
      *number = properties.location.type;
      break;
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
      *bytes = round_up(properties.maxSize, AddressSpace::kLargePage);
      break;
    case CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED:
      *number = (properties.usage & 2) != 0 ? 1 : 0;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult Pool::set(CUmemPool_attribute attribute, const void* value) {
  auto flag = [value](int* out) {
    int number = *static_cast<const int*>(value);
    if (number != 0 && number != 1) return CUDA_ERROR_INVALID_VALUE;
    *out = number;
    return CUDA_SUCCESS;
  };
  std::lock_guard lock(mutex_);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return flag(&follow_events_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return flag(&opportunistic_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return flag(&internal_dependencies_);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      threshold_ = *static_cast<const uint64_t*>(value);
      return CUDA_SUCCESS;
    // The high-water marks can be reset to the current use, but not set to other values.
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (*static_cast<const uint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
      reserved_high_ = reserved_;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (*static_cast<const uint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
      if (!mutated(Mutation::pool_high_mark_stays)) used_high_ = used_;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

bool CurrentPools::valid(const CUmemLocation& location, CUmemAllocationType type, int gpus) {
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED) return false;
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location.id >= 0 && location.id < gpus;
    case CU_MEM_LOCATION_TYPE_HOST:
      return true;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return location.id == 0;
    case CU_MEM_LOCATION_TYPE_NONE:
      return type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    default:
      return false;
  }
}

CurrentPools::Key CurrentPools::key(const CUmemLocation& location, CUmemAllocationType type) {
  bool numbered = location.type == CU_MEM_LOCATION_TYPE_DEVICE || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  return {type, location.type, numbered ? location.id : 0};
}

// Under the mutex; created on first use.
CurrentPools::Place& CurrentPools::at(const CUmemLocation& location, CUmemAllocationType type) {
  Place& place = places_[key(location, type)];
  if (!place.standard) {
    CUmemPoolProps properties{};
    properties.allocType = type;
    properties.location = location;
    bool device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (!device) properties.location.id = 0;
    place.standard = std::make_shared<Pool>(properties, device ? location.id : 0);
    place.current = place.standard;
    driver().pools.add(place.standard);
  }
  return place;
}

PoolPointer CurrentPools::default_of(const CUmemLocation& location, CUmemAllocationType type) {
  std::lock_guard lock(mutex_);
  return at(location, type).standard;
}

PoolPointer CurrentPools::current_of(const CUmemLocation& location, CUmemAllocationType type) {
  std::lock_guard lock(mutex_);
  return at(location, type).current;
}

void CurrentPools::set_current(const CUmemLocation& location, CUmemAllocationType type, PoolPointer pool) {
  std::lock_guard lock(mutex_);
  at(location, type).current = std::move(pool);
}

bool CurrentPools::is_default(const Pool* pool) {
  std::lock_guard lock(mutex_);
  for (const auto& [where, place] : places_) {
    if (place.standard.get() == pool) return true;
  }
  return false;
}

void CurrentPools::forget(const Pool* pool) {
  std::lock_guard lock(mutex_);
  for (auto& [where, place] : places_) {
    if (place.current.get() == pool) place.current = place.standard;
  }
}

}  // namespace rota::sim
