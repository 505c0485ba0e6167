#include "runtime/memory/deferred.h"

#include <algorithm>

#include "generated/driver_real.h"
#include "runtime/driver/own_streams.h"

namespace rota::memory {

bool Deferred::of(const Block& block, api::CUcontext context) {
  return block.allocation.owner == Owner::of(context) || (block.event != nullptr && block.event_context == context);
}

void Deferred::add(const Allocation& allocation, api::CUevent event, api::CUcontext event_context) {
  const std::lock_guard lock(state_->mutex);
  Block block;
  block.allocation = allocation;
  block.event = event;
  block.event_context = event_context;
  state_->blocks.push_back(block);
  recount();
}

void Deferred::add_unused(api::CUdeviceptr address, api::CUcontext context, std::uint64_t bytes) {
  const std::lock_guard lock(state_->mutex);
  Block block;
  block.allocation.address = address;
  block.allocation.bytes = bytes;
  block.allocation.owner = Owner::of(context);
  block.in_ledger = false;
  state_->blocks.push_back(block);
  recount();
}

bool Deferred::holds(api::CUdeviceptr address) const {
  const std::lock_guard lock(state_->mutex);
  return std::any_of(state_->blocks.begin(), state_->blocks.end(),
                     [&](const Block& block) { return block.allocation.address == address; });
}

std::vector<int> Deferred::sweep() {
  std::vector<int> devices;
  const std::lock_guard lock(state_->mutex);
  for (Block& block : state_->blocks) {
    if (block.event == nullptr || block.held > 0 || !driver::reached(block.event)) continue;
    real::cuEventDestroy_v2(block.event);
    block.event = nullptr;
    ledger_.uncharge(block.allocation);
    devices.push_back(block.allocation.device);
  }
  return devices;
}

std::optional<api::CUdeviceptr> Deferred::take(api::CUcontext context, std::uint64_t bytes, bool in_ledger) {
  const std::lock_guard lock(state_->mutex);
  const auto block = std::find_if(state_->blocks.begin(), state_->blocks.end(), [&](const Block& known) {
    // What the program has made synchronous stays so in the driver, and new memory never is.
    return known.in_ledger == in_ledger && known.event == nullptr && known.held == 0 && !known.leaving &&
           !known.allocation.synchronous && known.allocation.bytes == bytes &&
           known.allocation.owner == Owner::of(context);
  });
  if (block == state_->blocks.end()) return std::nullopt;
  const api::CUdeviceptr address = block->allocation.address;
  if (in_ledger) ledger_.finish_free(block->allocation);
  state_->blocks.erase(block);
  recount();
  return address;
}

std::optional<api::CUdeviceptr> Deferred::reuse(api::CUcontext context, std::uint64_t bytes) {
  return take(context, bytes, true);
}

std::optional<api::CUdeviceptr> Deferred::reuse_unused(api::CUcontext context, std::uint64_t bytes) {
  return take(context, bytes, false);
}

void Deferred::free_unused(const std::optional<Owner>& owner) {
  std::unique_lock lock(state_->mutex);
  for (;;) {
    const auto next = std::find_if(state_->blocks.begin(), state_->blocks.end(), [&](const Block& block) {
      return block.event == nullptr && block.held == 0 && !block.leaving &&
             (!owner || block.allocation.owner == *owner);
    });
    if (next == state_->blocks.end()) return;
    next->leaving = true;
    const Allocation allocation = next->allocation;
    const bool in_ledger = next->in_ledger;
    lock.unlock();  // the driver may wait, and others look at this list
    // Out of the ledger afterwards: if the driver has given the address again by then, that entry is another one.
    real::cuMemFree_v2(allocation.address);
    if (in_ledger) ledger_.finish_free(allocation);
    lock.lock();
    std::erase_if(state_->blocks,
                  [&](const Block& block) { return block.leaving && block.allocation.address == allocation.address; });
    recount();
    state_->left.notify_all();
  }
}

void Deferred::context_ending(api::CUcontext context) {
  if (!any()) return;
  std::unique_lock lock(state_->mutex);
  for (Block& block : state_->blocks) {
    if (of(block, context)) ++block.held;
  }
  state_->left.wait(lock, [&] {
    return std::none_of(state_->blocks.begin(), state_->blocks.end(),
                        [&](const Block& block) { return block.leaving && of(block, context); });
  });
}

void Deferred::context_ended(api::CUcontext context, bool gone) {
  if (!any()) return;
  const std::lock_guard lock(state_->mutex);
  for (Block& block : state_->blocks) {
    if (!of(block, context)) continue;
    block.held = std::max(block.held - 1, 0);
    if (!gone || block.event == nullptr || block.event_context != context) continue;
    block.event = nullptr;  // ended with its context, and so did the work before it
    ledger_.uncharge(block.allocation);
  }
  if (gone) {
    std::erase_if(state_->blocks, [&](const Block& block) { return block.allocation.owner == Owner::of(context); });
    recount();
  }
}

}  // namespace rota::memory
