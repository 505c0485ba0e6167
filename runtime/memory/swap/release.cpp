// Memory that is released without being moved: extents whose contents are on the host unchanged, copies that would not
// be read again, and memory that will not be used any more.
#include <utility>

#include "runtime/memory/swap/swap.h"

namespace rota::memory {

// Releases what has come in since the gate was last open: unchanged from the host's copy, or never written. Returns the
// bytes released.
std::uint64_t SwapBackend::drop_unused(int ordinal, std::uint64_t bytes, const Exchange& exchange, Moved& moved) {
  std::uint64_t sum = 0;
  for (const auto& [without_copy, size, address] : eviction_order(on_gpu(ordinal))) {
    if (sum >= bytes) break;
    Gone leaving;
    {
      const std::lock_guard lock(mutex_);
      Range* range = nullptr;
      Extent* extent = extent_at(address, &range);
      if (extent == nullptr || !unused(*range, *extent) || range->kept || range->ending) continue;
      leaving = take_out(*range, *extent);
      extent->moving = true;
      ++out_of_place(range->device);
    }
    if (const api::CUresult result = leave(ordinal, std::move(leaving), exchange); result == api::CUDA_SUCCESS) {
      sum += size;
    } else {
      moved.failed = true;
      moved.error = result;
    }
  }
  return sum;
}

std::uint64_t SwapBackend::context_failed(api::CUcontext context, int ordinal) {
  std::vector<Extent> gone;
  std::uint64_t had = 0;
  std::uint64_t sum = 0;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [address, range] : ranges_) {
      if (range.context != context || range.device != ordinal) continue;
      if (range.kept || range.failed || range.ending) continue;
      take_off(range);
      range.failed = true;
      for (Extent& extent : range.extents) {
        gone.push_back(extent);
        extent.moving = true;
        extent.piece = {};
        extent.host = nullptr;
        extent.saved = false;
      }
    }
  }
  for (Extent& extent : gone) {
    const std::uint64_t bytes = extent.piece ? extent.bytes : 0;
    had += bytes;
    if (drop(ordinal, extent)) sum += bytes;
    if (extent.host != nullptr) store_.discard(extent.host, extent.bytes);
    landed(extent.address);
  }
  take_resident(ordinal, had);
  return sum;
}

void SwapBackend::release_all() {
  for (int ordinal = 0; ordinal < kMaxDevices; ++ordinal) drop_kept(ordinal, UINT64_MAX);
  std::vector<std::pair<int, Extent>> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [address, range] : ranges_) {
      if (range.kept || range.failed) continue;
      for (Extent& extent : range.extents) {
        gone.emplace_back(range.device, extent);
        if (extent.piece) {
          out_[static_cast<std::size_t>(range.device)] += extent.bytes;
          ++out_of_place(range.device);
        }
        extent.moving = true;
        extent.piece = {};
        extent.host = nullptr;
        extent.saved = false;
      }
    }
  }
  for (auto& [ordinal, extent] : gone) {
    const std::uint64_t bytes = extent.piece ? extent.bytes : 0;
    drop(ordinal, extent);
    take_resident(ordinal, bytes);
    if (extent.host != nullptr) store_.discard(extent.host, extent.bytes);
    landed(extent.address);
  }
}

}  // namespace rota::memory
