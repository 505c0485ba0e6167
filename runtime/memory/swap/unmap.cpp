// How an extent's physical memory is mapped, and how it leaves the GPU.
//
// The driver may refuse to take memory back. Where the program's mappings are still there, or can be mapped again, the
// extent has not left: nothing of it is handed over, since this process could still write there. Otherwise its memory
// is *stuck*: it is on the GPU, so it counts as there, although nobody uses it. The driver is asked again with each
// move.
#include <algorithm>
#include <iterator>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/memory/swap/swap.h"

namespace rota::memory {

namespace {

// From the last address to the first, until the driver refuses one.
api::CUresult unmap_from(std::vector<std::uint64_t>& mapped, std::uint64_t bytes) {
  api::CUresult result = api::CUDA_SUCCESS;
  while (!mapped.empty()) {
    result = real::cuMemUnmap(mapped.back(), bytes);
    if (result != api::CUDA_SUCCESS) break;
    mapped.pop_back();
  }
  return result;
}

}  // namespace

// Its own address first, if it is mapped there.
std::vector<std::uint64_t> SwapBackend::mappings_of(const Extent& extent) {
  std::vector<std::uint64_t> all;
  if (extent.mapped) all.push_back(extent.address);
  for (const Alias& alias : extent.aliases) all.push_back(alias.address);
  return all;
}

// The memory is the extent's from now on, or released.
api::CUresult SwapBackend::map(int ordinal, Extent& extent, Piece&& piece) {
  Piece taken = std::move(piece);
  api::CUresult result =
      extent.mapped ? real::cuMemMap(extent.address, extent.bytes, 0, taken.handle, 0) : api::CUDA_SUCCESS;
  if (result != api::CUDA_SUCCESS) {
    release_piece(ordinal, extent.bytes, std::move(taken));
    return result;
  }
  std::size_t mapped = 0;
  result = map_aliases(extent.bytes, extent.aliases, taken.handle, &mapped);
  if (result == api::CUDA_SUCCESS) {
    extent.piece = std::move(taken);
    return result;
  }
  Extent part = extent;
  part.aliases.resize(mapped);
  part.piece = std::move(taken);
  drop(ordinal, part);
  return result;
}

api::CUresult SwapBackend::unmap(int ordinal, Extent& extent, const Exchange& exchange) {
  if (!extent.piece) return api::CUDA_SUCCESS;
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
    if (map_aliases(back.bytes, back.aliases, extent.piece.handle, &again) == api::CUDA_SUCCESS &&
        give_access(std::move(allowed)) == api::CUDA_SUCCESS) {
      return result;
    }
    for (std::size_t index = 0; index < again; ++index) mapped.push_back(back.aliases[index].address);
  } else {
    // It is offered once this process has given it up.
    const SharedDescriptor memory = descriptor_of(extent.piece, extent.bytes, exchange);
    result = real::cuMemRelease(extent.piece.handle);
    if (result == api::CUDA_SUCCESS) {
      if (memory) exchange.give(memory->get(), extent.bytes);
      extent.piece = {};
      return result;
    }
    log::debug("an extent of {} bytes cannot be released: error {}", extent.bytes, static_cast<int>(result));
  }
  add_stuck({.device = ordinal,
             .bytes = extent.bytes,
             .piece = std::exchange(extent.piece, {}),
             .mapped = std::move(mapped)});
  return result;
}

bool SwapBackend::drop(int ordinal, Extent& extent, const Exchange& exchange) {
  if (unmap(ordinal, extent, exchange) == api::CUDA_SUCCESS) return true;
  if (!extent.piece) return false;
  std::vector<std::uint64_t> mapped = mappings_of(extent);
  add_stuck({.device = ordinal,
             .bytes = extent.bytes,
             .piece = std::exchange(extent.piece, {}),
             .mapped = std::move(mapped)});
  return false;
}

void SwapBackend::release_piece(int ordinal, std::uint64_t bytes, Piece&& piece) {
  if (real::cuMemRelease(piece.handle) == api::CUDA_SUCCESS) {
    piece = {};
  } else {
    add_stuck({.device = ordinal, .bytes = bytes, .piece = std::move(piece), .mapped = {}});
  }
}

// Counted on top of what its extent counts, which the caller takes off.
void SwapBackend::add_stuck(Stuck&& stuck) {
  add_resident(stuck.device, stuck.bytes);
  const std::lock_guard lock(mutex_);
  stuck_.push_back(std::move(stuck));
}

std::uint64_t SwapBackend::release_stuck(int ordinal) {
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
                          real::cuMemRelease(each.piece.handle) == api::CUDA_SUCCESS;
    if (released) {
      each.piece = {};
      sum += each.bytes;
    }
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t address : mapped) being_released_.erase(being_released_.find(address));
    if (!released) stuck_.push_back(std::move(each));
  }
  take_resident(ordinal, sum);
  return sum;
}

// With the lock held: by the books its memory has left the GPU.
SwapBackend::Gone SwapBackend::take_out(const Range& range, Extent& extent) {
  Gone gone{.extent = extent, .access = access_of(range)};
  extent.piece = {};
  out_[static_cast<std::size_t>(range.device)] += extent.bytes;
  return gone;
}

// It still counts as moving: no thread maps or frees it in the meantime. If the driver refuses, it is where it was, or
// has left and its memory is stuck.
api::CUresult SwapBackend::leave(int ordinal, Gone&& gone, const Exchange& exchange) {
  const api::CUresult result = unmap(ordinal, gone.extent, exchange);
  if (gone.extent.piece) {
    const std::lock_guard lock(mutex_);
    Range* range = nullptr;
    Extent* const extent = extent_at(gone.extent.address, &range);
    extent->piece = std::move(gone.extent.piece);
    out_[static_cast<std::size_t>(ordinal)] -= extent->bytes;
    catch_up(*range, *extent, gone.access);
  } else {
    take_resident(ordinal, gone.extent.bytes);
  }
  landed(gone.extent.address);
  return result;
}

}  // namespace rota::memory
