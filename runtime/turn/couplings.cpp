#include "runtime/turn/couplings.h"

#include <algorithm>
#include <bit>

namespace rota::turn {

bool Couplings::ask_until(gate::Devices devices, Time until, Time now) {
  if (std::popcount(devices) < 2) return false;
  const std::lock_guard lock(mutex_);
  std::erase_if(all_, [&](const Coupling& one) { return one.until < now; });
  const auto known = std::ranges::find_if(all_, [&](const Coupling& one) { return (devices & ~one.devices) == 0; });
  if (known != all_.end()) {
    if (known->devices == devices) known->until = std::max(known->until, until);
    if (known->devices == devices || known->until >= until) return false;
  }
  all_.push_back({devices, until});
  return true;
}

gate::Devices Couplings::with(gate::Devices devices, Time now) const {
  const std::lock_guard lock(mutex_);
  for (gate::Devices before = 0; before != devices;) {
    before = devices;
    for (const Coupling& one : all_) {
      if (one.until >= now && (one.devices & devices) != 0) devices |= one.devices;
    }
  }
  return devices;
}

}  // namespace rota::turn
