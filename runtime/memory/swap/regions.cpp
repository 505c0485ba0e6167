#include "runtime/memory/swap/regions.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/memory/swap/access.h"

namespace rota::memory {

// --- where memory is, and what happens only while it is in place

bool Regions::in_place(Devices devices) const {
  for (; devices != 0; devices &= devices - 1) {
    if (out_of_place_[static_cast<std::size_t>(std::countr_zero(devices))].load(std::memory_order_acquire) != 0) {
      return false;
    }
  }
  return true;
}

bool Regions::if_in_place(Devices devices, FunctionRef<void()> work) {
  const std::lock_guard lock(mutex_);
  if (!in_place(devices)) return false;
  work();
  return true;
}

bool Regions::use_if_in_place(Devices devices, FunctionRef<void()> open) {
  const std::lock_guard lock(mutex_);
  return open_if_in_place(devices, open);
}

std::optional<bool> Regions::try_use_if_in_place(Devices devices, FunctionRef<void()> open) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  return open_if_in_place(devices, open);
}

// With the lock held.
bool Regions::open_if_in_place(Devices devices, FunctionRef<void()> open) {
  if (!in_place(devices)) return false;
  for (Devices rest = devices; rest != 0; rest &= rest - 1) ++opened_[static_cast<std::size_t>(std::countr_zero(rest))];
  open();
  return true;
}

void Regions::begin_moving(const Range& range, Extent& extent) {
  extent.moving = true;
  ++out_of_place(range.device);
}

void Regions::count_out(const Range& range, const Extent& extent) {
  out_[static_cast<std::size_t>(range.device)] += extent.bytes;
}

void Regions::count_in(const Range& range, const Extent& extent) {
  out_[static_cast<std::size_t>(range.device)] -= extent.bytes;
}

void Regions::landed(std::uint64_t address) {
  std::optional<Range> ended;
  {
    const std::lock_guard lock(mutex_);
    Range* range = nullptr;
    Extent* extent = extent_at(address, &range);
    extent->moving = false;
    if (extent->physical) --out_of_place(range->device);
    if (range->ending && !range->moves()) {
      uncount(*range);
      ended = std::move(*range);
      ranges_.erase(ended->address);
    }
  }
  landed_.notify_all();
  if (ended) destroy(std::move(*ended));
}

void Regions::catch_up(const Range& range, const Extent& extent, const Access& given) {
  const Access& now = access_of(range);
  if (now == given) return;
  for (const auto& [device, flags] : given) {
    if (!now.contains(device)) {
      change_access(extent.address, extent.bytes, device, api::CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
  }
  for (const auto& [device, flags] : now) change_access(extent.address, extent.bytes, device, flags);
}

// --- which ranges there are

const Range* Regions::range_at(std::uint64_t address) const {
  const auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return nullptr;
  const Range& range = std::prev(next)->second;
  return address - range.address < range.bytes ? &range : nullptr;
}

Extent* Regions::extent_at(std::uint64_t address, Range** range) {
  Range* found = const_cast<Range*>(std::as_const(*this).range_at(address));
  if (found == nullptr) return nullptr;
  if (range != nullptr) *range = found;
  const auto extent = std::find_if(found->extents.begin(), found->extents.end(),
                                   [&](const Extent& each) { return each.address == address; });
  return extent == found->extents.end() ? nullptr : &*extent;
}

std::optional<Regions::Found> Regions::find(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const Range* range = range_at(address);
  return range != nullptr ? std::optional(Found{range->context, range->id, range->device}) : std::nullopt;
}

bool Regions::begins(std::uint64_t address) const {
  if (!any()) return false;
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  return found != ranges_.end() && !found->second.cached;
}

bool Regions::overlaps(std::uint64_t address, std::uint64_t bytes) const {
  if (!any()) return false;
  const std::lock_guard lock(mutex_);
  const auto next = ranges_.lower_bound(address);
  if (next != ranges_.end() && next->first - address < std::max<std::uint64_t>(bytes, 1)) return true;
  return range_at(address) != nullptr;
}

// --- how ranges begin

Range Regions::cut(const Place& place, std::uint64_t bytes, std::uint64_t most, bool may_begin_small) const {
  const Accounting& accounting = accounting_[static_cast<std::size_t>(place.device)];
  Range range;
  range.begins_small = may_begin_small && accounting.begin_small == 0;
  range.bytes = bytes;
  range.device = place.device;
  range.context = place.context;
  if (place.context == nullptr) range.access.emplace();
  for (std::uint64_t start = 0; start < range.bytes;) {
    Extent extent;
    extent.bytes = std::min(range.begins_small && start < most ? kSmallExtent : most, range.bytes - start);
    start += extent.bytes;
    range.extents.push_back(extent);
  }
  return range;
}

std::optional<api::CUdeviceptr> Regions::reuse(const Range& wanted) {
  Accounting& accounting = accounting_[static_cast<std::size_t>(wanted.device)];
  // Cached ranges have the access of plain memory, except for what the program had created, which has none.
  const bool lacks_access = !wanted.own && wanted.access && !accounting.access.empty();
  const auto same = lacks_access ? accounting.cached_alike.end() : accounting.cached_alike.find(like(wanted));
  if (same == accounting.cached_alike.end()) return std::nullopt;
  Range& range = ranges_.at(same->second);
  accounting.cached_alike.erase(same);
  accounting.cached -= range.bytes;
  range.cached = false;
  range.context = wanted.context;
  range.access = wanted.access;
  range.id = ++last_id_;
  return range.address;
}

void Regions::insert(Range&& range) {
  if (!range.extents.front().physical) {
    out_[static_cast<std::size_t>(range.device)] += range.bytes;
    out_of_place(range.device) += range.extents.size();
  }
  any_.store(true, std::memory_order_relaxed);
  range.id = ++last_id_;
  if (range.begins_small) ++accounting_[static_cast<std::size_t>(range.device)].begin_small;
  const std::uint64_t address = range.address;
  ranges_.emplace(address, std::move(range));
}

}  // namespace rota::memory
