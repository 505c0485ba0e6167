#include "runtime/monitor/gate_keeper.h"

namespace rota::monitor {

bool GateKeeper::open(gate::Devices devices) {
  return memory_.use_if_in_place(memory_.reachable(devices), [&] {
    gate::out_of_place.fetch_and(~devices);
    gate_.open(devices);
  });
}

// The call uses memory as any call of a turn does.
void GateKeeper::admit(gate::Devices devices) {
  memory_.use_if_in_place(memory_.reachable(devices), [&] {
    gate::out_of_place.fetch_and(~devices);
    gate_.admit(devices);
  });
}

bool GateKeeper::open_for_good() {
  return memory_.use_if_in_place(memory::kAllDevices, [this] {
    gate::out_of_place.store(0);
    gate_.open_for_good();
  });
}

std::optional<bool> GateKeeper::try_open_for_good() {
  return memory_.try_use_if_in_place(memory::kAllDevices, [this] {
    gate::out_of_place.store(0);
    gate_.open_for_good();
  });
}

}  // namespace rota::monitor
