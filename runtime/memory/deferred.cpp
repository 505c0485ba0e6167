#include "runtime/memory/deferred.h"

#include <algorithm>
#include <iterator>

#include "generated/driver_real.h"
#include "runtime/driver/capture_mode.h"
#include "runtime/driver/own_streams.h"

namespace rota::memory {

bool Deferred::of(const Block& block, api::CUcontext context) {
  return block.allocation.owner == Owner::of(context) || (block.event != nullptr && block.event_context == context);
}

void Deferred::insert(const Block& block) {
  const std::lock_guard lock(state_->mutex);
  const Id id = ++state_->last;
  state_->blocks.emplace(id, block);
  if (block.reusable) state_->by_size.emplace(size_of(block), id);
  state_->addresses.insert(block.allocation.address);
  recount();
}

Deferred::Blocks::iterator Deferred::erase(Blocks::iterator block) {
  if (block->second.reusable) {
    const auto [first, last] = state_->by_size.equal_range(size_of(block->second));
    state_->by_size.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == block->first; }));
  }
  state_->addresses.erase(state_->addresses.find(block->second.allocation.address));
  return state_->blocks.erase(block);
}

void Deferred::add(const Allocation& allocation, api::CUevent event, api::CUcontext event_context, bool reusable) {
  Block block;
  block.allocation = allocation;
  block.event = event;
  block.event_context = event_context;
  block.captured = event == nullptr;
  block.reusable = reusable;
  insert(block);
}

void Deferred::add_unused(api::CUdeviceptr address, const Place& place, std::uint64_t bytes) {
  Block block;
  block.allocation.address = address;
  block.allocation.bytes = bytes;
  block.allocation.owner = Owner::of(place.context);
  block.allocation.device = place.device;
  block.in_ledger = false;
  insert(block);
}

bool Deferred::holds(api::CUdeviceptr address) const {
  const std::lock_guard lock(state_->mutex);
  return state_->addresses.contains(address);
}

// Queries whether the events of these blocks have been reached, with `lock` released during the queries. Returns the
// GPUs of those that have.
std::set<int> Deferred::ask(Lock& lock, const std::vector<Id>& blocks) {
  struct Question {
    Id id;
    api::CUevent event;
    bool reached = false;
  };
  std::vector<Question> questions;
  for (const Id id : blocks) {
    Block& block = state_->blocks.at(id);
    if (block.event == nullptr || block.held > 0 || block.asked) continue;
    block.asked = true;
    ++block.queries;
    questions.push_back({id, block.event});
  }
  std::set<int> devices;
  if (questions.empty()) return devices;
  lock.unlock();
  {
    const driver::RelaxedCapture relaxed;
    for (Question& question : questions) question.reached = driver::reached(question.event);
  }
  lock.lock();
  for (const Question& question : questions) {
    const auto known = state_->blocks.find(question.id);
    if (known == state_->blocks.end()) continue;  // freed while its context ended
    Block& block = known->second;
    block.asked = false;
    if (!question.reached) continue;
    if (!events_.give_back(block.event_context, block.event)) real::cuEventDestroy_v2(block.event);
    block.event = nullptr;
    ledger_.uncharge(block.allocation);
    devices.insert(block.allocation.device);
  }
  state_->answered.notify_all();
  return devices;
}

std::vector<int> Deferred::sweep() {
  Lock lock(state_->mutex);
  std::vector<Id> all;
  all.reserve(state_->blocks.size());
  for (const auto& [id, block] : state_->blocks) all.push_back(id);
  const std::set<int> devices = ask(lock, all);
  for (const Id id : all) {
    const auto known = state_->blocks.find(id);
    if (known == state_->blocks.end() || !known->second.asked || known->second.event == nullptr) continue;
    state_->answered.wait(lock, [&, query = known->second.queries] {
      const auto block = state_->blocks.find(id);
      return block == state_->blocks.end() || !block->second.asked || block->second.queries != query;
    });
  }
  return {devices.begin(), devices.end()};
}

bool Deferred::may_be_taken(const Block& block, bool in_ledger) {
  // Memory that the program has made synchronous stays so in the driver, and new memory never is.
  return block.in_ledger == in_ledger && block.held == 0 && !block.asked && !block.allocation.synchronous;
}

std::optional<api::CUdeviceptr> Deferred::take(const Place& place, std::uint64_t bytes, bool in_ledger) {
  const Size size{Owner::of(place.context).id, place.device, bytes};
  Lock lock(state_->mutex);
  const auto find = [&]() -> std::optional<api::CUdeviceptr> {
    const auto [first, last] = state_->by_size.equal_range(size);
    for (auto entry = first; entry != last; ++entry) {
      const auto block = state_->blocks.find(entry->second);
      if (block->second.event != nullptr || !may_be_taken(block->second, in_ledger)) continue;
      const Allocation taken = block->second.allocation;
      if (in_ledger) ledger_.finish_free(taken);
      erase(block);
      recount();
      return taken.address;
    }
    return std::nullopt;
  };
  if (const auto found = find()) return found;
  std::vector<Id> few;
  const auto [first, last] = state_->by_size.equal_range(size);
  for (auto entry = first; entry != last && few.size() < kFew; ++entry) {
    if (may_be_taken(state_->blocks.at(entry->second), in_ledger)) few.push_back(entry->second);
  }
  return ask(lock, few).empty() ? std::nullopt : find();
}

std::optional<api::CUdeviceptr> Deferred::reuse(const Place& place, std::uint64_t bytes) {
  return take(place, bytes, true);
}

std::optional<api::CUdeviceptr> Deferred::reuse_unused(const Place& place, std::uint64_t bytes) {
  return take(place, bytes, false);
}

void Deferred::free_unused(const std::optional<Owner>& owner) {
  free_those([&](const Block& block) { return !owner || block.allocation.owner == *owner; });
}

bool Deferred::free_extents(FunctionRef<bool(api::CUdeviceptr)> is_extents) {
  if (!any()) return false;
  return free_those([&](const Block& block) { return !block.captured && is_extents(block.allocation.address); });
}

// Frees those of the blocks whose use is over. Returns whether there were any.
bool Deferred::free_those(FunctionRef<bool(const Block&)> which) {
  Lock lock(state_->mutex);
  for (bool any = false;; any = true) {
    const auto next = std::find_if(state_->blocks.begin(), state_->blocks.end(), [&](const auto& entry) {
      const Block& block = entry.second;
      return block.event == nullptr && block.held == 0 && !block.asked && which(block);
    });
    if (next == state_->blocks.end()) return any;
    next->second.asked = true;
    const Id id = next->first;
    const Allocation allocation = next->second.allocation;
    const bool in_ledger = next->second.in_ledger;
    lock.unlock();  // the driver may wait, and other threads use these blocks
    // Removed from the ledger afterwards: if the driver has reused the address by then, that entry is a different one.
    give_back_(allocation.address);
    if (in_ledger) ledger_.finish_free(allocation);
    lock.lock();
    if (const auto left = state_->blocks.find(id); left != state_->blocks.end()) erase(left);
    recount();
    state_->answered.notify_all();
  }
}

void Deferred::context_ending(api::CUcontext context) {
  if (!any()) return;
  Lock lock(state_->mutex);
  for (auto& [id, block] : state_->blocks) {
    if (of(block, context)) ++block.held;
  }
  state_->answered.wait(lock, [&] {
    return std::none_of(state_->blocks.begin(), state_->blocks.end(),
                        [&](const auto& entry) { return entry.second.asked && of(entry.second, context); });
  });
}

void Deferred::context_ended(api::CUcontext context, bool gone) {
  if (!any()) return;
  const std::lock_guard lock(state_->mutex);
  for (auto entry = state_->blocks.begin(); entry != state_->blocks.end();) {
    Block& block = entry->second;
    if (!of(block, context)) {
      ++entry;
      continue;
    }
    block.held = std::max(block.held - 1, 0);
    if (gone && block.event != nullptr && block.event_context == context) {
      block.event = nullptr;  // the event ended with its context, and so did the work before it
      ledger_.uncharge(block.allocation);
    }
    entry = gone && block.allocation.owner == Owner::of(context) ? erase(entry) : std::next(entry);
  }
  recount();
}

}  // namespace rota::memory
