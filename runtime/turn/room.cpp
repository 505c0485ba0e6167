#include "runtime/turn/room.h"

#include <algorithm>

#include "runtime/turn/counted.h"
#include "scheduler/protocol/protocol.h"

namespace rota::turn {

std::uint64_t Room::needed(int device) const {
  // rotad promises no more than a GPU has. A thread that reserves more gets the driver's answer.
  const std::uint64_t live = std::min(ledger_.live_bytes(device), protocol::kMaxGpuBytes);
  return slot(device).want_all.load() != 0 ? std::max(live, slot(device).total.load()) : live;
}

void Room::wait_for_all(int device, std::uint64_t bytes) {
  Slot& here = slots_[static_cast<std::size_t>(device)];
  here.total.store(bytes);
  const Counted wanting(here.want_all);
  wait(device);
}

void Room::wait(int device) {
  const Counted waiting(waiting_);
  bell_.ring();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return released_.load() || covered(device); });
}

// A waiting thread has raised its count before it looked, and looks under the lock.
void Room::changed() {
  if (waiting_.load() == 0) return;
  {
    const std::lock_guard lock(mutex_);
  }
  changed_.notify_all();
}

void Room::allow(int device, std::uint64_t bytes) {
  slots_[static_cast<std::size_t>(device)].allowed.store(bytes);
}

void Room::release_all() {
  released_.store(true);
  changed();
}

}  // namespace rota::turn
