#include "runtime/turn/room.h"

#include <algorithm>

#include "scheduler/protocol/protocol.h"

namespace rota::turn {

std::uint64_t Room::needed(int device) const {
  // rotad promises no more than any GPU has. Who reserves more gets the driver's answer.
  const std::uint64_t live = std::min(ledger_.live_bytes(device), protocol::kMaxGpuBytes);
  return slot(device).want_all.load() != 0 ? std::max(live, slot(device).total.load()) : live;
}

void Room::wait_for_all(int device, std::uint64_t bytes) {
  Slot& here = slots_[static_cast<std::size_t>(device)];
  struct Wanting {
    explicit Wanting(std::atomic<std::uint32_t>& count) : count_(count) { count_.fetch_add(1); }
    ~Wanting() { count_.fetch_sub(1); }
    std::atomic<std::uint32_t>& count_;
  };
  here.total.store(bytes);
  const Wanting wanting(here.want_all);
  wait(device);
}

void Room::wait(int device) {
  struct Waiting {  // also when the thread is cancelled while it waits
    explicit Waiting(std::atomic<std::uint32_t>& count) : count_(count) { count_.fetch_add(1); }
    ~Waiting() { count_.fetch_sub(1); }
    std::atomic<std::uint32_t>& count_;
  } waiting(waiting_);
  bell_.ring();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return released_.load() || covered(device); });
}

// Whoever waits has raised its count before it looked, and looks under the lock.
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
