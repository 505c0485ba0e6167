#include "runtime/turn/usage.h"

namespace rota::turn {

namespace {

// Changes of usage below 1/64 of a GPU are not worth a message.
constexpr std::uint64_t kFraction = 64;

}  // namespace

void Usage::changed(int device) {
  if (device < 0 || device >= memory::kMaxDevices) return;
  Slot& slot = slots_[static_cast<std::size_t>(device)];
  const int index = slot.index.load(std::memory_order_acquire);
  protocol::UsagePage* page = page_.load(std::memory_order_acquire);
  if (index < 0 || page == nullptr) return;
  std::uint64_t bytes = 0;
  std::uint64_t fixed = 0;
  do {
    bytes = memory_.ledger().live_bytes(device);
    fixed = memory_.ledger().fixed_bytes(device);
    // Whoever writes last looks again: another thread may have written newer sums before these. One total order of
    // these stores and of the ledger's sums makes that sure (no fence: TSan does not know fences).
    page->device_bytes[index].store(bytes);
    page->fixed_bytes[index].store(fixed);
  } while (bytes != memory_.ledger().live_bytes(device) || fixed != memory_.ledger().fixed_bytes(device));
  page->memory_modes[index].store(static_cast<std::uint8_t>(memory_.mode(device)), std::memory_order_relaxed);
  const std::uint64_t told = slot.last_told.load(std::memory_order_relaxed);
  const std::uint64_t change = bytes > told ? bytes - told : told - bytes;
  if (change < slot.worth_telling.load(std::memory_order_relaxed)) return;
  slot.last_told.store(bytes, std::memory_order_relaxed);
  news_.store(true, std::memory_order_release);
  bell_.ring();
}

void Usage::set_total(int device, std::uint64_t bytes) {
  slots_[static_cast<std::size_t>(device)].worth_telling.store(bytes / kFraction, std::memory_order_relaxed);
}

void Usage::connected(protocol::UsagePage* page) {
  page_.store(page, std::memory_order_release);
}

void Usage::lost() {
  page_.store(nullptr, std::memory_order_release);
  for (Slot& slot : slots_) {
    slot.index.store(-1, std::memory_order_relaxed);
    slot.last_told.store(0, std::memory_order_relaxed);
  }
}

void Usage::set_index(int device, int index) {
  slots_[static_cast<std::size_t>(device)].index.store(index, std::memory_order_release);
  changed(device);
}

}  // namespace rota::turn
