// Whether memory is where work expects it, and what happens only while it is.
#include <bit>

#include "runtime/memory/swap/swap.h"

namespace rota::memory {

bool SwapBackend::in_place(Devices devices) const {
  for (; devices != 0; devices &= devices - 1) {
    if (out_of_place_[static_cast<std::size_t>(std::countr_zero(devices))].load(std::memory_order_acquire) != 0) {
      return false;
    }
  }
  return true;
}

bool SwapBackend::if_in_place(Devices devices, FunctionRef<void()> work) {
  const std::lock_guard lock(mutex_);
  if (!in_place(devices)) return false;
  work();
  return true;
}

bool SwapBackend::use_if_in_place(Devices devices, FunctionRef<void()> open) {
  const std::lock_guard lock(mutex_);
  return open_if_in_place(devices, open);
}

std::optional<bool> SwapBackend::try_use_if_in_place(Devices devices, FunctionRef<void()> open) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  return open_if_in_place(devices, open);
}

// With the lock held.
bool SwapBackend::open_if_in_place(Devices devices, FunctionRef<void()> open) {
  if (!in_place(devices)) return false;
  for (Devices rest = devices; rest != 0; rest &= rest - 1) ++opened_[static_cast<std::size_t>(std::countr_zero(rest))];
  open();
  return true;
}

}  // namespace rota::memory
