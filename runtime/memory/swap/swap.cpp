#include "runtime/memory/swap/swap.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/core/one_allocation.h"
#include "runtime/core/undo.h"
#include "runtime/memory/round_up.h"
#include "scheduler/base/host_memory.h"
#include "scheduler/protocol/protocol.h"
#include "scheduler/rules/context_cost.h"
#include "scheduler/rules/largest_extent.h"

namespace rota::memory {

// Bytes that can be on the GPU at once, next to all processes' contexts and to what programs without rota have. With
// the lock held.
std::uint64_t SwapBackend::most(int ordinal) {
  const std::uint64_t total = devices_.of(ordinal).total;
  const std::uint64_t known = turns_->all_context_bytes(ordinal);
  return total - std::min(total, known != 0 ? known : protocol::assumed_context(total));
}

bool SwapBackend::reserve(int ordinal, std::uint64_t bytes, std::uint64_t uncounted, bool& for_others) {
  const OneAllocation one;
  const std::uint64_t granule = granularity(ordinal);
  if (bytes > protocol::kMaxGpuBytes) return false;
  const std::uint64_t more = round_up(bytes, granule);
  std::atomic<std::uint64_t>& needed = regions_.needed(ordinal);
  const auto fits = [&](std::uint64_t also) {
    needed += more;
    Rollback asking([&] { needed -= more; });  // also if the thread is cancelled
    const bool there = turns_->may_take_extents(ordinal, more, also, [&] { asking.cancel(); }, for_others);
    if (there) asking.commit();
    return there;
  };
  const bool unused = contents_->has_unused();
  {
    std::optional<OneAllocation::FirstWay> again_is_next;
    if (unused) again_is_next.emplace();
    if (fits(uncounted)) return true;
  }
  const bool freed = contents_->free_unused(ordinal);
  if ((freed || unused) && fits(uncounted)) return true;
  // If a limit on allocations is what refuses it, that limit may still count memory which was freed in the meantime.
  if (uncounted != 0 && fits(0)) return true;
  if (!for_others) turns_->explain_refusal(ordinal);
  return false;
}

void SwapBackend::release(int ordinal, std::uint64_t bytes) {
  regions_.needed(ordinal) -= round_up(bytes, granularity(ordinal));
}

// Closes the gate for an allocation that does not fit on the GPU, and keeps it closed for as long as this object lives,
// even if the thread is cancelled.
class SwapBackend::ClosesGate {
 public:
  explicit ClosesGate(SwapBackend& owner) : owner_(owner) {}
  ~ClosesGate() {
    if (closes_) --owner_.regions_.out_of_place(*closes_);
  }
  ClosesGate(const ClosesGate&) = delete;
  ClosesGate& operator=(const ClosesGate&) = delete;
  // False: it has been called before, or waiting is futile.
  bool ask(int ordinal) {
    return !std::exchange(asked_, true) && owner_.turns_->close_gate(ordinal, [this, ordinal] {
      closes_ = ordinal;
      ++owner_.regions_.out_of_place(ordinal);
    });
  }

 private:
  SwapBackend& owner_;
  bool asked_ = false;
  std::optional<int> closes_;  // this GPU's gate
};

api::CUresult SwapBackend::allocate(const Place& place, api::CUdeviceptr* address, std::uint64_t bytes) {
  const std::uint64_t granule = granularity(place.device);
  if (bytes > UINT64_MAX - granule) return api::CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t most = round_up(protocol::kLargestExtent, granule);
  Range range;
  {
    const Regions::Lock lock = regions_.lock();
    range = regions_.cut(place, round_up(bytes, granule), most, bytes >= most && kSmallExtent % granule == 0);
    if (const auto again = regions_.reuse(range)) {
      *address = *again;
      return api::CUDA_SUCCESS;
    }
  }
  return make(std::move(range), address);
}

// The range is a single extent, whatever its size.
api::CUresult SwapBackend::allocate_own(int ordinal, api::CUdeviceptr* address, std::uint64_t bytes,
                                        const Making& making) {
  Range range;
  {
    const Regions::Lock lock = regions_.lock();
    range = regions_.cut({.context = nullptr, .device = ordinal}, bytes, bytes, false);
    range.own = making;
    if (const auto again = regions_.reuse(range)) {
      *address = *again;
      return api::CUDA_SUCCESS;
    }
  }
  return make(std::move(range), address);
}

// Reserves addresses for the range, and maps memory if this process may have that on the GPU now.
api::CUresult SwapBackend::make(Range&& range, api::CUdeviceptr* address) {
  const bool exports = devices_.of(range.device).exports;
  Access access;
  {
    const Regions::Lock lock = regions_.lock();
    access = regions_.access_of(range);
  }
  const int ordinal = range.device;
  const std::uint64_t bytes = range.bytes;
  const bool own = range.own.has_value();
  api::CUresult result = mapper_.reserve_addresses(own, bytes, address);
  if (result != api::CUDA_SUCCESS) return result;
  Rollback reserved([&, at = *address] { mapper_.free_addresses(own, at, bytes); });
  range.address = *address;
  std::uint64_t next = range.address;
  for (Extent& extent : range.extents) {
    extent.address = next;
    next += extent.bytes;
  }
  ClosesGate closes_gate(*this);
  for (bool placed = false; !placed;) {
    // Inside the gate, so that the monitor moves nothing until the range is recorded.
    turns_->if_our_turn(ordinal, [&] {
      placed = true;
      mapper_.add_resident(ordinal, bytes);
      Rollback resident([&] { mapper_.take_resident(ordinal, bytes); });
      result = mapper_.populate(range, access, exports);
      if (result == api::CUDA_ERROR_OUT_OF_MEMORY && regions_.drop_kept(ordinal, bytes) != 0) {
        result = mapper_.populate(range, access, exports);
      }
      if (result != api::CUDA_SUCCESS) return;
      const Regions::Lock lock = regions_.lock();
      for (const Extent& extent : range.extents) regions_.catch_up(range, extent, access);
      regions_.insert(std::move(range));
      resident.commit();
    });
    if (placed && result == api::CUDA_ERROR_OUT_OF_MEMORY && closes_gate.ask(ordinal)) {
      // Try once more: out of place behind the closed gate, or in memory that others have released in the meantime.
      placed = false;
      result = api::CUDA_SUCCESS;
      continue;
    }
    if (placed) break;
    if (!turns_->others_closed(ordinal)) continue;
    const Regions::Lock lock = regions_.lock();
    bool open = false;
    turns_->if_our_turn(ordinal, [&] { open = true; });
    if (open) continue;
    placed = true;
    // Without rota the driver would refuse it, too. Memory that can never be on the GPU all at once would keep the gate
    // closed forever.
    if (needed_bytes(ordinal) + overhead_bytes(ordinal) > most(ordinal)) {
      result = api::CUDA_ERROR_OUT_OF_MEMORY;
      break;
    }
    regions_.insert(std::move(range));
    turns_->out_of_place(ordinal);
  }
  if (result == api::CUDA_SUCCESS) reserved.commit();
  return result;
}

void SwapBackend::context_ended(api::CUcontext context) {
  if (!any() || context == nullptr) return;
  fingerprints_.forget(context);
  store_.context_ended(context);
  regions_.context_ended(context);
}

}  // namespace rota::memory
