#include "runtime/memory/swap/swap.h"

#include <algorithm>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/memory/round_up.h"
#include "runtime/memory/swap/reach.h"
#include "runtime/memory/swap/untried.h"
#include "scheduler/protocol/context_cost.h"
#include "scheduler/protocol/host_memory.h"
#include "scheduler/protocol/protocol.h"

namespace rota::memory {

namespace {

// The most that is kept for the next allocations: a 64th of the GPU.
constexpr std::uint64_t kKeptPart = 64;

}  // namespace

bool SwapBackend::serves(int ordinal) {
  // Called several times for each allocation, by all threads: without the lock once it is known.
  std::atomic<Serves>& known = serves_[static_cast<std::size_t>(ordinal)];
  if (const Serves answer = known.load(std::memory_order_relaxed); answer != Serves::kUnknown) {
    return answer == Serves::kYes;
  }
  const std::lock_guard lock(mutex_);
  const bool serves = device(ordinal).serves;
  known.store(serves ? Serves::kYes : Serves::kNo, std::memory_order_relaxed);
  return serves;
}

protocol::MemoryMode SwapBackend::untried(int ordinal) {
  return serves(ordinal) ? untried_[static_cast<std::size_t>(ordinal)].load(std::memory_order_relaxed)
                         : protocol::MemoryMode::kUnknown;
}

// With the lock held.
SwapBackend::Device& SwapBackend::device(int ordinal) {
  Device& entry = devices_[static_cast<std::size_t>(ordinal)];
  if (entry.known) return entry;
  entry.known = true;
  int has_virtual_memory = 0;
  const api::CUmemAllocationProp wanted = physical_properties(ordinal, {});
  std::size_t total = 0;
  std::size_t granularity = 0;
  entry.serves =
      real::cuDeviceGetAttribute(&has_virtual_memory, api::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                 ordinal) == api::CUDA_SUCCESS &&
      has_virtual_memory != 0 &&
      real::cuMemGetAllocationGranularity(&granularity, &wanted, api::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) ==
          api::CUDA_SUCCESS &&
      granularity != 0 && real::cuDeviceTotalMem_v2(&total, ordinal) == api::CUDA_SUCCESS;
  if (!entry.serves) return entry;
  untried_[static_cast<std::size_t>(ordinal)].store(memory::untried(ordinal), std::memory_order_relaxed);
  entry.exports = has_exportable_memory(ordinal);
  entry.granularity = granularity;
  entry.total = total;
  entry.most_kept = total / kKeptPart;
  return entry;
}

// Bytes that can be on the GPU at once: next to contexts, including those of other processes, and to what programs
// without rota have. With the lock held.
std::uint64_t SwapBackend::most(int ordinal) {
  const std::uint64_t total = device(ordinal).total;
  const std::uint64_t known = observer_.contexts ? observer_.contexts(ordinal) : 0;
  return total - std::min(total, known != 0 ? known : protocol::assumed_context(total));
}

// --- the driver's side of an extent

api::CUresult SwapBackend::create(std::uint64_t bytes, int device, bool exports, PhysicalHandle* handle) {
  const api::CUmemAllocationProp wanted =
      physical_properties(device, {.exportable = exports && bytes >= kLeastHandedOver});
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

// As the program wants it, if it has a preference.
api::CUresult SwapBackend::create(const std::optional<Making>& own, std::uint64_t bytes, int device, bool exports,
                                  PhysicalHandle* handle) {
  if (!own || *own == Making{}) return create(bytes, device, exports, handle);
  const api::CUmemAllocationProp wanted = physical_properties(device, *own);
  return real::cuMemCreate(handle, bytes, &wanted, 0);
}

// All of it on the GPU, or nothing.
api::CUresult SwapBackend::populate(Range& range, const Access& access, bool exports) {
  api::CUresult result = api::CUDA_SUCCESS;
  for (Extent& extent : range.extents) {
    extent.mapped = extent.reachable = !range.own;
    Piece piece;
    result = create(range.own, extent.bytes, range.device, exports, &piece.handle);
    if (result == api::CUDA_SUCCESS) result = map(range.device, extent, std::move(piece));
    if (result != api::CUDA_SUCCESS) break;
  }
  if (result == api::CUDA_SUCCESS && !range.own) {
    result = give_access(range.address, range.bytes, range.device, access);
  }
  if (result == api::CUDA_SUCCESS) return result;
  for (Extent& extent : range.extents) drop(range.device, extent);
  return result;
}

// Before the driver is asked for memory, and after it has taken some back. Each with no lock held.
void SwapBackend::add_resident(int device, std::uint64_t bytes) {
  resident_[static_cast<std::size_t>(device)] += bytes;
  if (observer_.resident) observer_.resident(device);
}

void SwapBackend::take_resident(int device, std::uint64_t bytes) {
  if (bytes == 0) return;
  resident_[static_cast<std::size_t>(device)] -= bytes;
  if (observer_.resident) observer_.resident(device);
}

// --- ranges

// A range of this many bytes, in extents of at most `most` bytes; with `first`, as much as one of them in extents of
// that many at its beginning.
SwapBackend::Range SwapBackend::cut(const Place& place, std::uint64_t bytes, std::uint64_t most, std::uint64_t first) {
  Range range;
  range.begins_small = first != 0;
  range.bytes = bytes;
  range.device = place.device;
  range.context = place.context;
  if (place.context == nullptr) range.access.emplace();
  for (std::uint64_t start = 0; start < range.bytes;) {
    Extent extent;
    extent.bytes = std::min(first != 0 && start < most ? first : most, range.bytes - start);
    start += extent.bytes;
    range.extents.push_back(extent);
  }
  return range;
}

// With the lock held. Its extents are all on the GPU, or none is.
void SwapBackend::insert(Range&& range) {
  if (!range.extents.front().piece) {
    out_[static_cast<std::size_t>(range.device)] += range.bytes;
    out_of_place(range.device) += range.extents.size();
  }
  any_.store(true, std::memory_order_relaxed);
  range.id = ++last_id_;
  if (range.begins_small) ++device(range.device).begin_small;
  const std::uint64_t address = range.address;
  ranges_.emplace(address, std::move(range));
}

// A range that has been removed from the books. Returns the bytes that are no longer on the GPU.
std::uint64_t SwapBackend::destroy(Range&& range, const Exchange& exchange) {
  std::uint64_t had = 0;
  std::uint64_t gone = 0;
  for (Extent& extent : range.extents) {
    const std::uint64_t bytes = extent.piece ? extent.bytes : 0;
    had += bytes;
    if (drop(range.device, extent, exchange)) gone += bytes;
    if (extent.host != nullptr) store_.discard(extent.host, extent.bytes);
  }
  free_addresses(range.own.has_value(), range.address, range.bytes);
  take_resident(range.device, had);
  return gone;
}

std::uint64_t SwapBackend::granularity(int ordinal) {
  const std::lock_guard lock(mutex_);
  return device(ordinal).granularity;
}

bool SwapBackend::reserve(int ordinal, std::uint64_t bytes, std::uint64_t uncounted) {
  const std::uint64_t granule = granularity(ordinal);
  if (bytes > protocol::kMaxGpuBytes) return false;
  const std::uint64_t more = round_up(bytes, granule);
  std::atomic<std::uint64_t>& needed = needed_[static_cast<std::size_t>(ordinal)];
  const auto fits = [&](std::uint64_t also) {
    needed += more;
    struct Asking {  // also if the thread is cancelled
      ~Asking() { needed -= more; }
      std::atomic<std::uint64_t>& needed;
      std::uint64_t more;
    } asking{needed, more};
    const bool there =
        !observer_.fits || observer_.fits(ordinal, more, also, [&] { needed -= std::exchange(asking.more, 0); });
    if (there) asking.more = 0;
    return there;
  };
  if (fits(uncounted)) return true;
  // If a limit on what is allocated is in the way, memory that was freed in the meantime may count for it.
  const bool freed = free_unused_ && free_unused_(ordinal);
  if ((freed || uncounted != 0) && fits(0)) return true;
  if (observer_.explain) observer_.explain(ordinal);
  return false;
}

void SwapBackend::release(int ordinal, std::uint64_t bytes) {
  needed_[static_cast<std::size_t>(ordinal)] -= round_up(bytes, granularity(ordinal));
}

// Closes the gate for an allocation that the driver has no room for, and keeps it closed until the end of this object's
// life, even if the thread is cancelled.
class SwapBackend::ClosesGate {
 public:
  explicit ClosesGate(SwapBackend& owner) : owner_(owner) {}
  ~ClosesGate() {
    if (closes_) --owner_.out_of_place(*closes_);
  }
  ClosesGate(const ClosesGate&) = delete;
  ClosesGate& operator=(const ClosesGate&) = delete;
  // False: it has been called before.
  bool ask(int ordinal) {
    if (asked_ || !owner_.observer_.close_for_room) return false;
    asked_ = true;
    owner_.observer_.close_for_room(ordinal, [this, ordinal] {
      closes_ = ordinal;
      ++owner_.out_of_place(ordinal);
    });
    return true;
  }

 private:
  SwapBackend& owner_;
  bool asked_ = false;
  std::optional<int> closes_;  // this GPU's gate
};

api::CUresult SwapBackend::allocate(const Place& place, api::CUdeviceptr* address, std::uint64_t bytes) {
  Range range;
  {
    const std::lock_guard lock(mutex_);
    const Device& entry = device(place.device);
    if (bytes > UINT64_MAX - entry.granularity) return api::CUDA_ERROR_OUT_OF_MEMORY;
    const std::uint64_t most = round_up(protocol::kLargestExtent, entry.granularity);
    const bool begins_small = bytes >= most && entry.begin_small == 0 && kSmallExtent % entry.granularity == 0;
    range = cut(place, round_up(bytes, entry.granularity), most, begins_small ? kSmallExtent : 0);
    if (const auto again = reuse(range)) {
      *address = *again;
      return api::CUDA_SUCCESS;
    }
  }
  return make(std::move(range), address);
}

// Reserves addresses for it, and maps memory if this process may have that on the GPU now.
api::CUresult SwapBackend::make(Range&& range, api::CUdeviceptr* address) {
  Access access;
  bool exports = false;
  {
    const std::lock_guard lock(mutex_);
    exports = device(range.device).exports;
    access = access_of(range);
  }
  const int ordinal = range.device;
  const std::uint64_t bytes = range.bytes;
  const bool own = range.own.has_value();
  api::CUresult result = reserve_addresses(own, bytes, address);
  if (result != api::CUDA_SUCCESS) return result;
  range.address = *address;
  std::uint64_t next = range.address;
  for (Extent& extent : range.extents) {
    extent.address = next;
    next += extent.bytes;
  }
  ClosesGate closes_gate(*this);
  for (bool placed = false; !placed;) {
    // Inside the gate, so that the monitor moves nothing until the range is in the books.
    if_our_turn_(ordinal, [&] {
      placed = true;
      add_resident(ordinal, bytes);
      result = populate(range, access, exports);
      if (result == api::CUDA_ERROR_OUT_OF_MEMORY && drop_kept(ordinal, bytes) != 0) {
        result = populate(range, access, exports);
      }
      if (result != api::CUDA_SUCCESS) return take_resident(ordinal, bytes);
      const std::lock_guard lock(mutex_);
      for (const Extent& extent : range.extents) catch_up(range, extent, access);
      insert(std::move(range));
    });
    if (placed && result == api::CUDA_ERROR_OUT_OF_MEMORY && closes_gate.ask(ordinal)) {
      // Try once more: out of place behind the closed gate, or in memory that others have released in the meantime.
      placed = false;
      result = api::CUDA_SUCCESS;
      continue;
    }
    if (placed) break;
    if (observer_.others_closed && !observer_.others_closed(ordinal)) continue;
    const std::lock_guard lock(mutex_);
    bool open = false;
    if_our_turn_(ordinal, [&] { open = true; });
    if (open) continue;
    placed = true;
    // The driver would refuse it on the GPU. Memory that could never be there at once would keep the gate closed
    // forever.
    if (needed_bytes(ordinal) > most(ordinal)) {
      result = api::CUDA_ERROR_OUT_OF_MEMORY;
      break;
    }
    insert(std::move(range));
    if (observer_.out_of_place) observer_.out_of_place(ordinal);
  }
  if (result != api::CUDA_SUCCESS) free_addresses(own, *address, bytes);
  return result;
}

// With the lock held.
std::optional<api::CUdeviceptr> SwapBackend::reuse(const Range& wanted) {
  Device& entry = device(wanted.device);
  // Kept ranges have the access of plain memory, except for what the program had created, which has none.
  const bool lacks_access = !wanted.own && wanted.access && !entry.access.empty();
  const auto same = lacks_access ? entry.kept_alike.end() : entry.kept_alike.find(like(wanted));
  if (same == entry.kept_alike.end()) return std::nullopt;
  Range& range = ranges_.at(same->second);
  entry.kept_alike.erase(same);
  entry.kept -= range.bytes;
  range.kept = false;
  range.context = wanted.context;
  range.access = wanted.access;
  range.id = ++last_id_;
  return range.address;
}

// Returns the bytes released.
std::uint64_t SwapBackend::drop_kept(int ordinal, std::uint64_t bytes, const Exchange& exchange) {
  std::vector<Range> gone;
  std::uint64_t released = release_stuck(ordinal);
  {
    std::uint64_t sum = released;
    const std::lock_guard lock(mutex_);
    Device& entry = device(ordinal);
    while (sum < bytes && !entry.kept_alike.empty()) {
      const auto largest = std::prev(entry.kept_alike.end());
      auto range = ranges_.extract(largest->second);
      take_off(range.mapped());
      sum += range.mapped().bytes;
      gone.push_back(std::move(range.mapped()));
    }
  }
  for (Range& range : gone) released += destroy(std::move(range), exchange);
  return released;
}

// With the lock held.
const SwapBackend::Range* SwapBackend::range_at(std::uint64_t address) const {
  const auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return nullptr;
  const Range& range = std::prev(next)->second;
  return address - range.address < range.bytes ? &range : nullptr;
}

std::optional<SwapBackend::Found> SwapBackend::find(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const Range* range = range_at(address);
  return range != nullptr ? std::optional(Found{range->context, range->id, range->device}) : std::nullopt;
}

bool SwapBackend::begins(std::uint64_t address) const {
  if (!any()) return false;
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  return found != ranges_.end() && !found->second.kept;
}

bool SwapBackend::overlaps(std::uint64_t address, std::uint64_t bytes) const {
  if (!any()) return false;
  const std::lock_guard lock(mutex_);
  const auto next = ranges_.lower_bound(address);
  if (next != ranges_.end() && next->first - address < std::max<std::uint64_t>(bytes, 1)) return true;
  return range_at(address) != nullptr;
}

// With the lock held: of a range that leaves the books, for destroy().
void SwapBackend::take_off(const Range& range) {
  if (range.failed) return;
  if (range.begins_small) --device(range.device).begin_small;
  if (!range.kept) needed_[static_cast<std::size_t>(range.device)] -= range.bytes;
  for (const Extent& extent : range.extents) {
    if (!extent.piece) out_[static_cast<std::size_t>(range.device)] -= extent.bytes;
    if (!extent.in_place()) --out_of_place(range.device);
  }
  if (!range.kept) return;
  Device& entry = device(range.device);
  entry.kept -= range.bytes;
  const auto [first, last] = entry.kept_alike.equal_range(like(range));
  entry.kept_alike.erase(std::find_if(first, last, [&](const auto& each) { return each.second == range.address; }));
}

void SwapBackend::free(std::uint64_t address, bool may_keep) {
  Range gone;
  {
    Lock lock(mutex_);
    const auto moves = [&] {
      const auto found = ranges_.find(address);
      return found != ranges_.end() && std::any_of(found->second.extents.begin(), found->second.extents.end(),
                                                   [](const Extent& extent) { return extent.moving; });
    };
    landed_.wait(lock, [&] { return !moves(); });
    const auto found = ranges_.find(address);
    if (found == ranges_.end() || found->second.kept) return;
    Range& range = found->second;
    Device& entry = device(range.device);
    const bool here =
        std::all_of(range.extents.begin(), range.extents.end(), [](const Extent& extent) { return extent.in_place(); });
    // Pools keep their unused memory themselves. Once the process is pinned, others may have registered what the
    // program created.
    const bool keeps = may_keep && (range.own ? !pinned() : range.context != nullptr);
    if (keeps && here && entry.kept + range.bytes <= entry.most_kept) {
      range.kept = true;
      needed_[static_cast<std::size_t>(range.device)] -= range.bytes;
      entry.kept += range.bytes;
      entry.kept_alike.emplace(like(range), range.address);
      return;
    }
    take_off(range);
    gone = std::move(range);
    ranges_.erase(found);
  }
  destroy(std::move(gone));
}

void SwapBackend::context_ended(api::CUcontext context) {
  if (!any() || context == nullptr) return;
  fingerprints_.forget(context);
  store_.context_ended(context);
  std::vector<Range> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto next = ranges_.begin(); next != ranges_.end();) {
      const auto each = next++;
      Range& range = each->second;
      // Nobody's memory is not kept for a program that may have no context left.
      if (range.context != context && !(range.own && range.kept)) continue;
      // The monitor may wait for the lock under which contexts end, so nothing here waits for the monitor: it destroys
      // what it is moving once the move has ended, and no longer finds what it has not begun to move.
      range.ending =
          std::any_of(range.extents.begin(), range.extents.end(), [](const Extent& extent) { return extent.moving; });
      range.context = nullptr;
      if (range.ending) continue;
      take_off(range);
      gone.push_back(std::move(range));
      ranges_.erase(each);
    }
  }
  for (Range& range : gone) destroy(std::move(range));
}

std::string SwapBackend::reached_from_outside() {
  return memory::reached_from_outside();
}

bool SwapBackend::lets_reach(std::string_view library) {
  return memory::lets_reach(library);
}

bool SwapBackend::being_checkpointed() {
  return memory::being_checkpointed();
}

}  // namespace rota::memory
