// Which GPUs may use an extent: its own, and those that have peer access to plain memory or access to the pool.
#include <algorithm>
#include <utility>
#include <vector>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/memory/swap/swap.h"

namespace rota::memory {

void SwapBackend::add_allowed(std::vector<Allowed>& all, const Extent& extent, int owner, const Access& access) {
  if (extent.mapped) {
    all.push_back({.address = extent.address, .bytes = extent.bytes, .access = access});
    all.back().access[owner] = api::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  for (const Alias& alias : extent.aliases) {
    if (!alias.access.empty()) {
      all.push_back({.address = alias.address, .bytes = extent.bytes, .access = alias.access});
    }
  }
}

api::CUresult SwapBackend::give_access(std::vector<Allowed> all) {
  std::sort(all.begin(), all.end(), [](const Allowed& a, const Allowed& b) { return a.address < b.address; });
  for (auto first = all.begin(); first != all.end();) {
    std::uint64_t bytes = first->bytes;
    auto next = first + 1;
    while (next != all.end() && next->address == first->address + bytes && next->access == first->access) {
      bytes += next++->bytes;
    }
    std::vector<api::CUmemAccessDesc> wanted;
    for (const auto& [device, flags] : first->access) {
      wanted.push_back({.location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, .flags = flags});
    }
    const api::CUresult result = real::cuMemSetAccess(first->address, bytes, wanted.data(), wanted.size());
    if (result != api::CUDA_SUCCESS) return result;
    first = next;
  }
  return api::CUDA_SUCCESS;
}

api::CUresult SwapBackend::give_access(std::uint64_t address, std::uint64_t bytes, int owner, const Access& access) {
  Allowed all{.address = address, .bytes = bytes, .access = access};
  all.access[owner] = api::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return give_access(std::vector{std::move(all)});
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

Devices SwapBackend::reachable(Devices devices) const {
  Devices all = devices;
  for (int owner = 0; owner < kMaxDevices; ++owner) {
    if ((reachers_[static_cast<std::size_t>(owner)].load() & devices) != 0) all |= bit_of(owner);
  }
  return all;
}

void SwapBackend::may_reach(int owner, int accessing) {
  reachers_[static_cast<std::size_t>(owner)].fetch_or(bit_of(accessing));
}

void SwapBackend::set_peer(int accessing, int owner, bool may) {
  if (accessing == owner) return;
  if (may) may_reach(owner, accessing);
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
    may_reach(range.device, accessing);
  }
  for (const Extent& extent : range.extents) {
    if (extent.piece) change_access(extent.address, extent.bytes, accessing, flags);
  }
}

}  // namespace rota::memory
