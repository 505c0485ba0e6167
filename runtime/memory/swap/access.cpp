#include "runtime/memory/swap/access.h"

#include <algorithm>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/core/log.h"

namespace rota::memory {

void add_allowed(std::vector<Allowed>& all, const Extent& extent, int owner, const Access& access) {
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

api::CUresult give_access(std::vector<Allowed> all) {
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

api::CUresult give_access(std::uint64_t address, std::uint64_t bytes, int owner, const Access& access) {
  Allowed all{.address = address, .bytes = bytes, .access = access};
  all.access[owner] = api::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return give_access(std::vector{std::move(all)});
}

void change_access(std::uint64_t address, std::uint64_t bytes, int accessing, api::CUmemAccess_flags flags) {
  const api::CUmemAccessDesc access{.location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = accessing},
                                    .flags = flags};
  const api::CUresult result = real::cuMemSetAccess(address, bytes, &access, 1);
  if (result == api::CUDA_SUCCESS) return;
  log::debug("cannot change the access of GPU {} to an extent of {} bytes: error {}", accessing, bytes,
             static_cast<int>(result));
}

}  // namespace rota::memory
