#include "runtime/client/usage.h"

#include <algorithm>
#include <chrono>
#include <type_traits>

namespace rota::client {

namespace {

// Changes of usage below 1/64 of a GPU are not worth a message.
constexpr std::uint64_t kFraction = 64;

// Nearly always the value is there already, and storing costs more than comparing.
template <typename Value>
void show(std::atomic<Value>& shown, std::type_identity_t<Value> value) {
  if (shown.load() != value) shown.store(value);
}

}  // namespace

void Usage::changed(int device) {
  if (device < 0 || device >= kMaxDevices) return;
  Slot& slot = slots_[static_cast<std::size_t>(device)];
  const int index = slot.index.load(std::memory_order_acquire);
  protocol::UsagePage* page = page_.load(std::memory_order_acquire);
  if (index < 0 || page == nullptr) return;
  memory::Residency::Sums sums;
  do {
    sums = memory_.sums(device);
    const std::uint64_t resident = sums.resident != 0 ? sums.resident + sums.fixed : 0;
    // The thread that writes last checks again: another thread may have written newer sums before these. A total order
    // of these stores and of the ledger's sums ensures that (no fence: TSan does not know fences).
    show(page->gpus[index].device_bytes, sums.live);
    const Pinned pinned = slot.pinned.load();
    const std::uint64_t for_good = sums.fixed + sums.pinned;
    const std::uint64_t stays = pinned == Pinned::kNo ? for_good : std::max(for_good, resident);
    show(page->gpus[index].fixed_bytes, stays);
    const std::uint64_t stays_for_now = pinned == Pinned::kForNow ? stays - for_good : 0;
    show(page->gpus[index].fixed_for_now_bytes, stays_for_now);
    show(page->gpus[index].pinned_bytes, stays - stays_for_now - sums.fixed);
    for (std::size_t why = 0; why < protocol::kPins; ++why) {
      show(page->gpus[index].pinned_by[why], sums.pinned_by[why]);
    }
    show(page->gpus[index].pinned_all, static_cast<std::uint8_t>(slot.why.load()));
    show(page->gpus[index].resident_bytes, resident);
  } while (sums != memory_.sums(device));
  page->gpus[index].memory_mode.store(static_cast<std::uint8_t>(memory_.mode(device)), std::memory_order_relaxed);
  const auto differs = [&](std::atomic<std::uint64_t>& told, std::uint64_t now) {
    const std::uint64_t before = told.load(std::memory_order_relaxed);
    if ((now > before ? now - before : before - now) < slot.worth_telling.load(std::memory_order_relaxed)) return false;
    told.store(now, std::memory_order_relaxed);
    return true;
  };
  const bool more_or_less = differs(slot.last_told, sums.live);
  const bool more_stays = differs(slot.pins_told, sums.pinned);
  if (!differs(slot.resident_told, sums.resident) && !more_or_less && !more_stays) return;
  news_.store(true, std::memory_order_release);
  bell_.ring();
}

void Usage::show_if_all_pinned(int device) {
  const protocol::PinAll why = memory_.pinned_all();
  if (why == protocol::PinAll::kNo) return;
  set_pinned(device, Pinned::kForGood, why);
  changed(device);
}

protocol::GpuUsage* Usage::record(int device) const {
  const int index = slots_[static_cast<std::size_t>(device)].index.load(std::memory_order_acquire);
  protocol::UsagePage* page = page_.load(std::memory_order_acquire);
  return index < 0 || page == nullptr ? nullptr : &page->gpus[index];
}

void Usage::set_short(int device, std::uint64_t bytes, std::uint64_t free_bytes) {
  protocol::GpuUsage* const gpu = record(device);
  if (gpu == nullptr || (bytes == 0 && gpu->short_bytes.load() == 0)) return;
  gpu->free_bytes.store(free_bytes);
  gpu->short_bytes.store(bytes);
  gpu->refusals.fetch_add(1);
  news_.store(true, std::memory_order_release);
}

// Each writer checks again, so that the last one leaves the latest value.
void Usage::show_awaited(int device, int more) {
  if (device < 0 || device >= kMaxDevices) return;
  Slot& slot = slots_[static_cast<std::size_t>(device)];
  slot.awaited.fetch_add(more);
  protocol::GpuUsage* const gpu = record(device);
  if (gpu == nullptr) return;
  int awaited = 0;
  do {
    awaited = slot.awaited.load();
    show(gpu->awaited, static_cast<std::uint16_t>(std::clamp(awaited, 0, int{UINT16_MAX})));
  } while (awaited != slot.awaited.load());
}

void Usage::set_all_threads_wait(bool all) {
  all_threads_wait_.store(all);
  show_all_threads_wait();
}

void Usage::show_all_threads_wait() {
  protocol::UsagePage* page = page_.load(std::memory_order_acquire);
  if (page == nullptr) return;
  bool all = false;
  do {
    all = all_threads_wait_.load();
    show(page->all_threads_wait, all ? 1 : 0);
  } while (all != all_threads_wait_.load());
}

void Usage::set_gang_rest(int device, std::uint64_t word) {
  protocol::GpuUsage* const gpu = record(device);
  if (gpu == nullptr) return;
  gpu->gang_rest.store(word);
  news_.store(true, std::memory_order_release);
}

void Usage::set_total(int device, std::uint64_t bytes) {
  slots_[static_cast<std::size_t>(device)].worth_telling.store(bytes / kFraction, std::memory_order_relaxed);
}

void Usage::moved_out(int device, std::uint64_t copied, std::uint64_t spared, turn::Time time) {
  const std::uint64_t ns = copied == 0 ? 0 : static_cast<std::uint64_t>(time.count());
  if (protocol::GpuUsage* const gpu = record(device)) {
    gpu->out_bytes.fetch_add(copied);
    gpu->out_ns.fetch_add(ns);
  }
  moves_.out_bytes += copied;
  moves_.spared_bytes += spared;
  moves_.out_ns += ns;
  show_moves();
}

void Usage::moved_in(int device, std::uint64_t copied, turn::Time time) {
  if (copied == 0) return;
  if (protocol::GpuUsage* const gpu = record(device)) {
    gpu->in_bytes.fetch_add(copied);
    gpu->in_ns.fetch_add(static_cast<std::uint64_t>(time.count()));
  }
  moves_.in_bytes += copied;
  moves_.in_ns += static_cast<std::uint64_t>(time.count());
  show_moves();
}

void Usage::show_moves() {
  protocol::UsagePage* page = page_.load(std::memory_order_acquire);
  if (page == nullptr) return;
  page->out_bytes.store(moves_.out_bytes);
  page->out_ns.store(moves_.out_ns);
  page->in_bytes.store(moves_.in_bytes);
  page->in_ns.store(moves_.in_ns);
  page->spared_bytes.store(moves_.spared_bytes);
}

void Usage::connected(protocol::UsagePage* page) {
  page_.store(page, std::memory_order_release);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  if (began_ns_ == 0) began_ns_ = static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
  page->began_ns.store(began_ns_);
  show_all_threads_wait();
  show_moves();
}

void Usage::lost() {
  page_.store(nullptr, std::memory_order_release);
  for (Slot& slot : slots_) {
    slot.index.store(-1, std::memory_order_relaxed);
    slot.last_told.store(0, std::memory_order_relaxed);
    slot.resident_told.store(0, std::memory_order_relaxed);
    slot.pins_told.store(0, std::memory_order_relaxed);
  }
}

void Usage::set_index(int device, int index) {
  slots_[static_cast<std::size_t>(device)].index.store(index, std::memory_order_release);
  show_awaited(device, 0);
  changed(device);
}

}  // namespace rota::client
