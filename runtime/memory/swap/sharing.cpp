#include "runtime/memory/swap/sharing.h"

#include "runtime/memory/swap/access.h"

namespace rota::memory {

Devices Sharing::reachable(Devices devices) const {
  Devices all = devices;
  for (int owner = 0; owner < kMaxDevices; ++owner) {
    if ((reachers_[static_cast<std::size_t>(owner)].load() & devices) != 0) all |= bit_of(owner);
  }
  return all;
}

void Sharing::set_peer(int accessing, int owner, bool may) {
  if (accessing == owner) return;
  if (may) may_reach(owner, accessing);
  const Regions::Lock lock = regions_.lock();
  constexpr auto kAll = api::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Access& access = regions_.plain_access(owner);
  if (may ? !access.try_emplace(accessing, kAll).second : access.erase(accessing) == 0) return;
  for (const auto& [address, range] : regions_.ranges()) {
    if (range.device != owner || range.access) continue;
    for (const Extent& extent : range.extents) {
      if (!extent.physical) continue;
      change_access(extent.address, extent.bytes, accessing, may ? kAll : api::CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
  }
}

void Sharing::set_access(api::CUdeviceptr address, int accessing, api::CUmemAccess_flags flags) {
  const Regions::Lock lock = regions_.lock();
  const auto found = regions_.ranges().find(address);
  if (found == regions_.ranges().end() || !found->second.access) return;
  Range& range = found->second;
  if (flags == api::CU_MEM_ACCESS_FLAGS_PROT_NONE) {
    range.access->erase(accessing);
  } else {
    (*range.access)[accessing] = flags;
    may_reach(range.device, accessing);
  }
  for (const Extent& extent : range.extents) {
    if (extent.physical) change_access(extent.address, extent.bytes, accessing, flags);
  }
}

}  // namespace rota::memory
