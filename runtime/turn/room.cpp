#include "runtime/turn/room.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "scheduler/protocol/protocol.h"

namespace rota::turn {

std::uint64_t Room::needed(int device) const {
  // rotad promises no more than a GPU has. A thread that reserves more gets the driver's answer.
  const std::uint64_t live = std::min(ledger_.live_bytes(device), protocol::kMaxGpuBytes);
  return slot(device).want_all.count() != 0 ? std::max(live, slot(device).total.load()) : live;
}

void Room::wait_for_all(int device, std::uint64_t bytes) {
  Slot& here = slots_[static_cast<std::size_t>(device)];
  here.total.store(bytes);
  wait(device, &here.want_all);
}

void Room::wait(int device) {
  wait(device, nullptr);
}

void Room::wait(int device, gate::Waiters* counted) {
  gate::Waiters::Place place(waiters_, mutex_);
  std::optional<gate::Waiters::Place> wanting;
  if (counted != nullptr) wanting.emplace(*counted, mutex_);
  bell_.ring();
  const auto done = [&] {
    if (wanting) wanting->count_again();
    return released_.load() || covered(device);
  };
  std::unique_lock lock(mutex_);
  waiters_.wait(place, lock, std::chrono::steady_clock::time_point::max(), done, [] {});
}

// A waiting thread has been counted before it looked, and looks under the lock.
void Room::changed() {
  if (waiters_.count() == 0) return;
  const std::lock_guard lock(mutex_);
  waiters_.wake_all();
  for (Slot& slot : slots_) slot.want_all.wake_all();
}

void Room::allow(int device, std::uint64_t bytes) {
  slots_[static_cast<std::size_t>(device)].allowed.store(bytes);
}

void Room::release_all() {
  released_.store(true);
  changed();
}

}  // namespace rota::turn
