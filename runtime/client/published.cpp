#include "runtime/client/published.h"

#include "scheduler/rules/context_cost.h"

namespace rota::client {

using namespace std::chrono_literals;

namespace {

// A GPU counts as overcommitted this long after programs had more than fits, so that what one gives back for that
// reason is not taken anew at once. A judgment.
constexpr turn::Time kStaysCrowded = 10s;
constexpr turn::Time kBeforeTurnEnds = 250ms;

}  // namespace

void Published::forget() {
  follow(nullptr);
  for (Slot& each : slots_) each.index.store(-1, std::memory_order_relaxed);
}

std::optional<Published::Gpu> Published::gpu(int device) const {
  if (device < 0 || device >= kMaxDevices) return std::nullopt;
  const protocol::LeasePage* const all = page();
  const int index = slot(device).index.load(std::memory_order_relaxed);
  return all != nullptr && index >= 0 ? std::optional(Gpu{all->gpus[index], index}) : std::nullopt;
}

bool Published::limited() const {
  const protocol::LeasePage* const all = page();
  return all != nullptr && all->limit_bytes.load(std::memory_order_relaxed) != protocol::kUnlimited;
}

std::uint64_t Published::context_bytes(int device) const {
  if (device < 0 || device >= kMaxDevices) return 0;
  const auto here = gpu(device);
  const std::uint64_t counted = here ? here->lease.context_bytes.load() : 0;
  // As rotad would assume.
  return counted != 0 ? counted : protocol::assumed_context(slot(device).total.load(std::memory_order_relaxed));
}

std::uint64_t Published::all_context_bytes(int device) const {
  const auto here = gpu(device);
  return here ? here->lease.all_context_bytes.load() : 0;
}

std::uint64_t Published::fixed_of_others_bytes(int device) const {
  const auto here = gpu(device);
  return here ? here->lease.fixed_of_others_bytes.load() : 0;
}

bool Published::others_leave(int device) const {
  const auto here = gpu(device);
  return here && here->lease.clearing.load() != 0;
}

bool Published::others_can_leave(int device) const {
  const auto here = gpu(device);
  return here && here->lease.movable.load() != 0;
}

bool Published::others_can_later(int device) const {
  const auto here = gpu(device);
  return here && here->lease.fixed_for_now.load() != 0;
}

bool Published::turn_ends(int device, turn::Time now) const {
  const auto here = gpu(device);
  const std::uint64_t by = here ? here->lease.give_back_by_ns.load() : 0;
  return by != 0 && now >= turn::Time(static_cast<std::int64_t>(by)) - kBeforeTurnEnds;
}

bool Published::crowded(int device, turn::Time now) {
  const auto here = gpu(device);
  if (!here) return false;
  std::atomic<turn::Time>& until = slot(device).crowded_until;
  if (here->lease.too_much_bytes.load(std::memory_order_relaxed) != 0) until = now + kStaysCrowded;
  return now < until.load();
}

}  // namespace rota::client
