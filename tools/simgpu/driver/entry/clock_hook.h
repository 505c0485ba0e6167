// The program's calls of the driver, as a virtual clock sees them.
#pragma once

namespace rota::sim {

// Lives as long as a call of an exported function, which costs the program's thread a little time. Nothing on the real
// clock or before cuInit.
class HostCall {
 public:
  HostCall();
  ~HostCall();
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;
};

}  // namespace rota::sim
