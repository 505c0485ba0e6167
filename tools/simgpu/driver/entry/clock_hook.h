// Reports the program's driver calls to a virtual clock.
#pragma once

namespace rota::sim {

// Exists during a call of an exported function, which costs the program's thread a little time. Does nothing on the
// real clock or before cuInit.
class HostCall {
 public:
  HostCall();
  ~HostCall();
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;
};

}  // namespace rota::sim
