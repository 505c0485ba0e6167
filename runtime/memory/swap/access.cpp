// Which GPUs may use an extent: its own, and those that have peer access to plain memory or access to the pool.
#include <vector>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/memory/swap/swap.h"

namespace rota::memory {

api::CUresult SwapBackend::give_access(std::uint64_t address, std::uint64_t bytes, int owner, const Access& access) {
  std::vector<api::CUmemAccessDesc> all;
  all.reserve(access.size() + 1);
  const auto add = [&](int device, api::CUmemAccess_flags flags) {
    all.push_back({.location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, .flags = flags});
  };
  add(owner, api::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  for (const auto& [device, flags] : access) add(device, flags);
  return real::cuMemSetAccess(address, bytes, all.data(), all.size());
}

// For extents that are mapped.
void SwapBackend::change_access(std::uint64_t address, std::uint64_t bytes, int accessing,
                                api::CUmemAccess_flags flags) {
  const api::CUmemAccessDesc access{.location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = accessing},
                                    .flags = flags};
  const api::CUresult result = real::cuMemSetAccess(address, bytes, &access, 1);
  if (result == api::CUDA_SUCCESS) return;
  log::debug("cannot change the access of GPU {} to an extent of {} bytes: error {}", accessing, bytes,
             static_cast<int>(result));
}

// With the lock held: records an extent as mapped, with the access that applied when the mapping began.
void SwapBackend::catch_up(const Range& range, const Extent& extent, const Access& given) {
  const Access& now = access_of(range);
  if (now == given) return;
  for (const auto& [device, flags] : given) {
    if (!now.contains(device)) {
      change_access(extent.address, extent.bytes, device, api::CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
  }
  for (const auto& [device, flags] : now) change_access(extent.address, extent.bytes, device, flags);
}

void SwapBackend::set_peer(int accessing, int owner, bool may) {
  if (accessing == owner) return;
  const std::lock_guard lock(mutex_);
  constexpr auto kAll = api::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Access& access = device(owner).access;
  if (may ? !access.try_emplace(accessing, kAll).second : access.erase(accessing) == 0) return;
  for (const auto& [address, range] : ranges_) {
    if (range.device != owner || range.access) continue;
    for (const Extent& extent : range.extents) {
      if (!extent.piece) continue;
      change_access(extent.address, extent.bytes, accessing, may ? kAll : api::CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
  }
}

void SwapBackend::set_access(const Place&, api::CUdeviceptr address, std::uint64_t, int accessing,
                             api::CUmemAccess_flags flags) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || !found->second.access) return;
  Range& range = found->second;
  if (flags == api::CU_MEM_ACCESS_FLAGS_PROT_NONE) {
    range.access->erase(accessing);
  } else {
    (*range.access)[accessing] = flags;
  }
  for (const Extent& extent : range.extents) {
    if (extent.piece) change_access(extent.address, extent.bytes, accessing, flags);
  }
}

}  // namespace rota::memory
