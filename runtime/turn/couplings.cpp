#include "runtime/turn/couplings.h"

#include <algorithm>
#include <bit>

namespace rota::turn {

bool Couplings::ask_until(Devices devices, When when, Time until, Time now) {
  if (std::popcount(devices) < 2) return false;
  const Time at_once_until = when == When::kAtOnce ? until : Time{0};
  std::erase_if(all_, [&](const Coupling& one) { return one.over(now); });
  const bool coupled = std::ranges::any_of(all_, [&](const Coupling& one) {
    return (devices & ~one.devices) == 0 && (when == When::kAnyway || one.at_once_until >= now);
  });
  const auto same = std::ranges::find(all_, devices, &Coupling::devices);
  if (same != all_.end()) {
    same->until = std::max(same->until, until);
    same->at_once_until = std::max(same->at_once_until, at_once_until);
    same->in_use = true;
  } else {
    all_.push_back({devices, until, at_once_until});
  }
  return !coupled;
}

void Couplings::at_rest(Devices devices) {
  for (Coupling& one : all_) {
    if ((one.devices & ~devices) == 0) one.in_use = false;
  }
}

Devices Couplings::with(Devices devices, Time now, When when) const {
  for (Devices before = 0; before != devices;) {
    before = devices;
    for (const Coupling& one : all_) {
      const bool counts = when == When::kAtOnce ? one.at_once_until >= now : !one.over(now);
      if (counts && (one.devices & devices) != 0) devices |= one.devices;
    }
  }
  return devices;
}

}  // namespace rota::turn
