#include "runtime/memory/swap/mapper.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/core/undo.h"
#include "runtime/memory/round_up.h"

namespace rota::memory {

namespace {

// How many addresses are reserved at once for what the program creates.
constexpr std::uint64_t kAddresses = std::uint64_t{1} << 30;

// Unmaps from the last address to the first, until the driver refuses one.
api::CUresult unmap_from(std::vector<std::uint64_t>& mapped, std::uint64_t bytes) {
  api::CUresult result = api::CUDA_SUCCESS;
  while (!mapped.empty()) {
    result = real::cuMemUnmap(mapped.back(), bytes);
    if (result != api::CUDA_SUCCESS) break;
    mapped.pop_back();
  }
  return result;
}

// The extent's own address first, if it is mapped there.
std::vector<std::uint64_t> mappings_of(const Extent& extent) {
  std::vector<std::uint64_t> all;
  if (extent.mapped) all.push_back(extent.address);
  for (const Alias& alias : extent.aliases) all.push_back(alias.address);
  return all;
}

}  // namespace

// --- how much

void Mapper::add_resident(int device, std::uint64_t bytes) {
  resident_[static_cast<std::size_t>(device)] += bytes;
  turns_->resident_changed(device);
}

void Mapper::take_resident(int device, std::uint64_t bytes) {
  if (bytes == 0) return;
  resident_[static_cast<std::size_t>(device)] -= bytes;
  turns_->resident_changed(device);
}

// --- addresses: each range has a reservation of its own, but for what the program creates itself, which is cut from
// large reservations that stay

api::CUresult Mapper::reserve_addresses(bool own, std::uint64_t bytes, api::CUdeviceptr* address) {
  if (!own) return real::cuMemAddressReserve(address, bytes, 0, 0, 0);
  const auto cut = [&] {
    const auto taken = own_addresses_.take(bytes, 0);
    if (taken) *address = taken->address;
    return taken.has_value();
  };
  {
    const std::lock_guard lock(mutex_);
    if (cut()) return api::CUDA_SUCCESS;
  }
  std::uint64_t all = round_up(bytes, kAddresses);
  api::CUdeviceptr more = 0;
  api::CUresult result = real::cuMemAddressReserve(&more, all, 0, 0, 0);
  if (result != api::CUDA_SUCCESS) result = real::cuMemAddressReserve(&more, all = bytes, 0, 0, 0);
  if (result != api::CUDA_SUCCESS) return result;
  const std::lock_guard lock(mutex_);
  own_addresses_.add({more, all});
  cut();
  return result;
}

// With the lock held: whether memory that the driver has refused to take back may be mapped there.
bool Mapper::is_stuck_at(std::uint64_t address, std::uint64_t bytes) const {
  const auto here = [&](std::uint64_t mapped) { return mapped - address < bytes; };
  return std::any_of(being_released_.begin(), being_released_.end(), here) ||
         std::any_of(stuck_.begin(), stuck_.end(),
                     [&](const Stuck& each) { return std::any_of(each.mapped.begin(), each.mapped.end(), here); });
}

void Mapper::free_addresses(bool own, std::uint64_t address, std::uint64_t bytes) {
  if (!own) {
    real::cuMemAddressFree(address, bytes);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (!is_stuck_at(address, bytes)) own_addresses_.give(address, 0, 0, 0);
}

// --- physical memory

api::CUresult Mapper::create(std::uint64_t bytes, int device, bool exports, PhysicalHandle* handle) {
  const api::CUmemAllocationProp wanted = physical_properties(device, {.exportable = exports});
  const api::CUresult result = real::cuMemCreate(handle, bytes, &wanted, 0);
  if (result == api::CUDA_SUCCESS || result == api::CUDA_ERROR_OUT_OF_MEMORY) return result;
  if (wanted.allocFlags.usage != 0) {
    make_without_decompression(device);
    return create(bytes, device, exports, handle);
  }
  if (wanted.requestedHandleTypes == api::CU_MEM_HANDLE_TYPE_NONE) return result;
  // If the driver cannot create descriptors after all (in some containers), memory is not handed over.
  return create(bytes, device, false, handle);
}

api::CUresult Mapper::create(const std::optional<Making>& own, std::uint64_t bytes, int device, bool exports,
                             PhysicalHandle* handle) {
  // Plain memory of any size may be exported; what the program makes itself without a handle type may only be handed
  // over.
  if (!own) return create(bytes, device, exports, handle);
  if (*own == Making{}) return create(bytes, device, exports && bytes >= kLeastHandedOver, handle);
  const api::CUmemAllocationProp wanted = physical_properties(device, *own);
  return real::cuMemCreate(handle, bytes, &wanted, 0);
}

api::CUresult Mapper::populate(Range& range, const Access& access, bool exports) {
  Rollback populated([&] {
    for (Extent& extent : range.extents) drop(range.device, extent);
  });
  api::CUresult result = api::CUDA_SUCCESS;
  for (Extent& extent : range.extents) {
    extent.mapped = extent.reachable = !range.own;
    PhysicalMemory physical;
    result = create(range.own, extent.bytes, range.device, exports, &physical.handle);
    if (result == api::CUDA_SUCCESS) result = map(range.device, extent, std::move(physical));
    if (result != api::CUDA_SUCCESS) return result;
  }
  if (!range.own) result = give_access(range.address, range.bytes, range.device, access);
  if (result == api::CUDA_SUCCESS) populated.commit();
  return result;
}

// Maps aliases, without access, until the driver refuses one; `mapped` says how many are.
api::CUresult Mapper::map_aliases(std::uint64_t bytes, const Aliases& aliases, PhysicalHandle handle,
                                  std::size_t* mapped) {
  api::CUresult result = api::CUDA_SUCCESS;
  *mapped = 0;
  for (const Alias& alias : aliases) {
    result = real::cuMemMap(alias.address, bytes, 0, handle, 0);
    if (result != api::CUDA_SUCCESS) break;
    ++*mapped;
  }
  return result;
}

api::CUresult Mapper::map(int ordinal, Extent& extent, PhysicalMemory&& physical) {
  PhysicalMemory taken = std::move(physical);
  bool mapped = false;  // at its own address
  std::size_t aliases = 0;
  Rollback partly([&] {
    Extent part = extent;
    part.mapped = mapped;
    part.aliases.resize(aliases);
    part.physical = std::move(taken);
    drop(ordinal, part);
  });
  if (extent.mapped) {
    const api::CUresult result = real::cuMemMap(extent.address, extent.bytes, 0, taken.handle, 0);
    if (result != api::CUDA_SUCCESS) return result;
    mapped = true;
  }
  const api::CUresult result = map_aliases(extent.bytes, extent.aliases, taken.handle, &aliases);
  if (result != api::CUDA_SUCCESS) return result;
  partly.commit();
  extent.physical = std::move(taken);
  return result;
}

api::CUresult Mapper::unmap(int ordinal, Extent& extent, const Exchange& exchange) {
  if (!extent.physical) return api::CUDA_SUCCESS;
  std::vector<std::uint64_t> mapped = mappings_of(extent);
  api::CUresult result = unmap_from(mapped, extent.bytes);
  if (result != api::CUDA_SUCCESS) {
    log::debug("an extent of {} bytes cannot be unmapped: error {}", extent.bytes, static_cast<int>(result));
    const std::size_t left = mapped.size() - (extent.mapped ? 1 : 0);
    Extent back;
    back.bytes = extent.bytes;
    back.aliases.assign(extent.aliases.begin() + static_cast<std::ptrdiff_t>(left), extent.aliases.end());
    back.mapped = false;
    std::size_t again = 0;
    std::vector<Allowed> allowed;
    add_allowed(allowed, back, ordinal, {});
    if (map_aliases(back.bytes, back.aliases, extent.physical.handle, &again) == api::CUDA_SUCCESS &&
        give_access(std::move(allowed)) == api::CUDA_SUCCESS) {
      return result;
    }
    for (std::size_t index = 0; index < again; ++index) mapped.push_back(back.aliases[index].address);
  } else {
    // It is offered only once this process has released it.
    const SharedDescriptor memory = extent.was_open ? nullptr : descriptor_of(extent.physical, extent.bytes, exchange);
    result = real::cuMemRelease(extent.physical.handle);
    if (result == api::CUDA_SUCCESS) {
      if (memory) exchange.give(memory->get(), extent.bytes);
      extent.physical = {};
      return result;
    }
    log::debug("an extent of {} bytes cannot be released: error {}", extent.bytes, static_cast<int>(result));
  }
  add_stuck({.device = ordinal,
             .bytes = extent.bytes,
             .physical = std::exchange(extent.physical, {}),
             .mapped = std::move(mapped)});
  return result;
}

bool Mapper::drop(int ordinal, Extent& extent, const Exchange& exchange) {
  if (unmap(ordinal, extent, exchange) == api::CUDA_SUCCESS) return true;
  if (!extent.physical) return false;
  std::vector<std::uint64_t> mapped = mappings_of(extent);
  add_stuck({.device = ordinal,
             .bytes = extent.bytes,
             .physical = std::exchange(extent.physical, {}),
             .mapped = std::move(mapped)});
  return false;
}

void Mapper::release_physical(int ordinal, std::uint64_t bytes, PhysicalMemory&& physical) {
  if (real::cuMemRelease(physical.handle) == api::CUDA_SUCCESS) {
    physical = {};
  } else {
    add_stuck({.device = ordinal, .bytes = bytes, .physical = std::move(physical), .mapped = {}});
  }
}

// Counts the bytes in addition to those of the extent, which the caller subtracts.
void Mapper::add_stuck(Stuck&& stuck) {
  add_resident(stuck.device, stuck.bytes);
  const std::lock_guard lock(mutex_);
  stuck_.push_back(std::move(stuck));
}

std::uint64_t Mapper::release_stuck(int ordinal) {
  std::vector<Stuck> all;
  {
    const std::lock_guard lock(mutex_);
    const auto first =
        std::stable_partition(stuck_.begin(), stuck_.end(), [&](const Stuck& each) { return each.device != ordinal; });
    std::move(first, stuck_.end(), std::back_inserter(all));
    stuck_.erase(first, stuck_.end());
    for (const Stuck& each : all) being_released_.insert(each.mapped.begin(), each.mapped.end());
  }
  std::uint64_t sum = 0;
  for (Stuck& each : all) {
    const std::vector<std::uint64_t> mapped = each.mapped;
    const bool released = unmap_from(each.mapped, each.bytes) == api::CUDA_SUCCESS &&
                          real::cuMemRelease(each.physical.handle) == api::CUDA_SUCCESS;
    if (released) {
      each.physical = {};
      sum += each.bytes;
    }
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t address : mapped) being_released_.erase(being_released_.find(address));
    if (!released) stuck_.push_back(std::move(each));
  }
  take_resident(ordinal, sum);
  return sum;
}

}  // namespace rota::memory
