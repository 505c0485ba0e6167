// The one place that opens and closes gates, and says that memory may be out of place.
//
// A gate opens only while all memory that work behind it may use is where the work expects it, and no allocation can
// end up elsewhere during that. Whether the process may run at all is its machine's decision (machine.h, may_open()).
#pragma once

#include <optional>

#include "runtime/gate/gate.h"
#include "runtime/memory/residency.h"

namespace rota::monitor {

class GateKeeper {
 public:
  GateKeeper(gate::Gate& gate, memory::Residency& memory) : gate_(gate), memory_(memory) {}

  // After it returns no call enters that reaches these GPUs, except for those that submit nothing.
  void close(gate::Devices devices = gate::kAllDevices) { gate_.close(devices); }
  // Calls that only hold memory in place wait from the next close() on, too: some is about to move.
  void begin_moving(gate::Devices devices) { gate::out_of_place.fetch_or(devices); }
  // They do not wait any more if all memory of these GPUs is in place.
  void end_moving(gate::Devices devices) {
    memory_.if_in_place(devices, [&] { gate::out_of_place.fetch_and(~devices); });
  }
  // False, and nothing has changed: an allocation has ended up out of place.
  bool open(gate::Devices devices);
  // Lets one call in under the same condition; otherwise none.
  void admit(gate::Devices devices);
  // No gate closes any more: no rotad serves this process, or it is exiting.
  bool open_for_good();
  // The same in a process that swaps nothing. Takes no lock, since a thread that has ended may hold it.
  void open_for_good_unswapped() { gate_.open_for_good(); }
  // The same without waiting; nothing: another thread holds a lock that this needs, perhaps for ever.
  std::optional<bool> try_open_for_good();
  // The memory of this process is lost: all calls that need the GPU return this error.
  void refuse(api::CUresult error) { gate_.refuse(error); }

 private:
  gate::Gate& gate_;
  memory::Residency& memory_;
};

}  // namespace rota::monitor
