#include "runtime/memory/swap/own_mappings.h"

#include <algorithm>

#include "generated/driver_real.h"
#include "runtime/core/log.h"

namespace rota::memory {

// The extent of such a range; it does not start to move while the lock is held. Null: there is none.
Extent* OwnMappings::quiesced(Regions::Lock& lock, std::uint64_t range) {
  Extent* extent = nullptr;
  regions_.wait(lock, [&] {
    extent = regions_.extent_at(range);
    return extent == nullptr || !extent->moving;
  });
  return extent;
}

api::CUresult OwnMappings::map(const Mapped& where, const OnGpu& call, const OffGpu& unasked) {
  Regions::Lock lock = regions_.lock();
  Extent* const extent = quiesced(lock, where.range);
  if (extent == nullptr) return api::CUDA_ERROR_INVALID_VALUE;
  const api::CUresult result = extent->physical ? call(extent->physical.handle) : unasked();
  if (result == api::CUDA_SUCCESS) extent->aliases.push_back({.address = where.address, .access = {}});
  return result;
}

// With the lock held throughout, so that nothing starts to move; none of these driver functions waits for work.
api::CUresult OwnMappings::change(const std::vector<Mapped>& all, const OffGpu& call, const OffGpu& unasked,
                                  FunctionRef<void(Extent& extent, Aliases::iterator alias, bool asked)> change) {
  Regions::Lock lock = regions_.lock();
  const auto each_is = [&](const auto& what) {
    return std::all_of(all.begin(), all.end(), [&](const Mapped& each) {
      const Extent* const extent = regions_.extent_at(each.range);
      return extent == nullptr || what(*extent);
    });
  };
  regions_.wait(lock, [&] { return each_is([](const Extent& extent) { return !extent.moving; }); });
  const bool asked = each_is([](const Extent& extent) { return static_cast<bool>(extent.physical); });
  const api::CUresult result = asked ? call() : unasked();
  if (result != api::CUDA_SUCCESS) return result;
  for (const Mapped& each : all) {
    Extent* const extent = regions_.extent_at(each.range);
    if (extent == nullptr) continue;
    const auto alias = std::find_if(extent->aliases.begin(), extent->aliases.end(),
                                    [&](const Alias& one) { return one.address == each.address; });
    if (alias != extent->aliases.end()) change(*extent, alias, asked);
  }
  return result;
}

api::CUresult OwnMappings::unmap(const std::vector<Mapped>& all, const OffGpu& call, const OffGpu& unasked) {
  return change(all, call, unasked, [](Extent& extent, Aliases::iterator alias, bool asked) {
    if (!asked && extent.physical) real::cuMemUnmap(alias->address, extent.bytes);
    extent.aliases.erase(alias);
  });
}

api::CUresult OwnMappings::set_access(const std::vector<Mapped>& all, const std::vector<api::CUmemAccessDesc>& accesses,
                                      const OffGpu& call, const OffGpu& unasked) {
  return change(all, call, unasked, [&](Extent& extent, Aliases::iterator alias, bool asked) {
    if (!asked && extent.physical) {
      const api::CUresult result = real::cuMemSetAccess(alias->address, extent.bytes, accesses.data(), accesses.size());
      if (result != api::CUDA_SUCCESS) log::debug("cannot set access to a mapping: error {}", static_cast<int>(result));
    }
    for (const api::CUmemAccessDesc& access : accesses) {
      if (access.location.type != api::CU_MEM_LOCATION_TYPE_DEVICE) continue;
      if (access.flags == api::CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        alias->access.erase(access.location.id);
      } else {
        alias->access[access.location.id] = access.flags;
        sharing_.may_reach(regions_.range_at(extent.address)->device, access.location.id);
      }
    }
  });
}

api::CUmemAccess_flags OwnMappings::access(const Mapped& where, int accessing) {
  const Regions::Lock lock = regions_.lock();
  const Extent* const extent = regions_.extent_at(where.range);
  if (extent == nullptr) return api::CU_MEM_ACCESS_FLAGS_PROT_NONE;
  const auto alias = std::find_if(extent->aliases.begin(), extent->aliases.end(),
                                  [&](const Alias& one) { return one.address == where.address; });
  if (alias == extent->aliases.end()) return api::CU_MEM_ACCESS_FLAGS_PROT_NONE;
  const auto access = alias->access.find(accessing);
  return access != alias->access.end() ? access->second : api::CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

PhysicalHandle OwnMappings::handle_of(std::uint64_t range) {
  Regions::Lock lock = regions_.lock();
  const Extent* const extent = quiesced(lock, range);
  return extent != nullptr ? extent->physical.handle : 0;
}

}  // namespace rota::memory
