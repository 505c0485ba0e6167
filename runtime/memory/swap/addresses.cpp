// Where ranges lie. Each has a reservation of its own, but for what the program creates itself: those are cut from
// large reservations, which stay.
#include <algorithm>

#include "generated/driver_real.h"
#include "runtime/memory/round_up.h"
#include "runtime/memory/swap/swap.h"

namespace rota::memory {

namespace {

// How many addresses are reserved at once for what the program creates.
constexpr std::uint64_t kAddresses = std::uint64_t{1} << 30;

}  // namespace

// `own`: for what the program creates itself.
api::CUresult SwapBackend::reserve_addresses(bool own, std::uint64_t bytes, api::CUdeviceptr* address) {
  if (!own) return real::cuMemAddressReserve(address, bytes, 0, 0, 0);
  const auto cut = [&] {
    const auto taken = own_addresses_.take(bytes, 0);
    if (taken) *address = taken->address;
    return taken.has_value();
  };
  {
    const std::lock_guard lock(mutex_);
    if (cut()) return api::CUDA_SUCCESS;
  }
  std::uint64_t all = round_up(bytes, kAddresses);
  api::CUdeviceptr more = 0;
  api::CUresult result = real::cuMemAddressReserve(&more, all, 0, 0, 0);
  if (result != api::CUDA_SUCCESS) result = real::cuMemAddressReserve(&more, all = bytes, 0, 0, 0);
  if (result != api::CUDA_SUCCESS) return result;
  const std::lock_guard lock(mutex_);
  own_addresses_.add({more, all});
  cut();
  return result;
}

// With the lock held: whether memory that the driver has refused to take back may be mapped there.
bool SwapBackend::is_stuck_at(std::uint64_t address, std::uint64_t bytes) const {
  const auto here = [&](std::uint64_t mapped) { return mapped - address < bytes; };
  return std::any_of(being_released_.begin(), being_released_.end(), here) ||
         std::any_of(stuck_.begin(), stuck_.end(),
                     [&](const Stuck& each) { return std::any_of(each.mapped.begin(), each.mapped.end(), here); });
}

// The driver refuses to free addresses at which memory is stuck; those that rota hands out itself are lost then.
void SwapBackend::free_addresses(bool own, std::uint64_t address, std::uint64_t bytes) {
  if (!own) {
    real::cuMemAddressFree(address, bytes);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (!is_stuck_at(address, bytes)) own_addresses_.give(address, 0, 0, 0);
}

}  // namespace rota::memory
