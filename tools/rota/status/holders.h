// Which rotads of this machine have GPUs, by asking at the names of the GPUs' locks (protocol/lock_door.h): `rota
// status` sees those that it does not talk to, too.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace rota::tool {

struct GpuHolder {
  std::string gpu;   // its UUID
  std::string name;  // the GPU's
  pid_t pid = 0;     // 0: in another pid namespace
  uid_t uid = 0;
  std::string user;
  std::string socket;
  std::uint32_t programs = 0;
  bool machine = false;  // the rotad for all users
};

// Takes half a second at most.
std::vector<GpuHolder> find_holders();

// One line: who has the GPU, and what helps whoever does not reach that rotad.
std::string holder_text(const GpuHolder& holder);

}  // namespace rota::tool
