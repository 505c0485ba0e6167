// The part of a program's environment that says where its rotad listens and what it serves: a rotad that is started
// for the program gets this and nothing else of it.
#pragma once

#include <string_view>

namespace rota::protocol {

// Whether rotad needs this entry ("NAME=value"): where its settings are, where it listens and locks, and which GPUs are
// simulated. LD_LIBRARY_PATH, in which NVML may lie, is not among them.
inline bool is_for_rotad(std::string_view entry) {
  for (const std::string_view needed :
       {"HOME=", "XDG_", "ROTA_SOCKET=", "ROTA_MACHINE_SOCKET=", "ROTA_LOCK_DIRECTORY=", "ROTA_SIM_"}) {
    if (entry.starts_with(needed)) return true;
  }
  return false;
}

}  // namespace rota::protocol
