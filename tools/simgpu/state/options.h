// The ROTA_SIM_* variables, read once per process. A bad value causes one warning and the default is used.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rota::sim {

struct Profile;

// The range of a simulated GPU's memory, in bytes.
inline constexpr uint64_t kLeastMemory = uint64_t{8} << 20;
inline constexpr uint64_t kMostMemory = uint64_t{256} << 30;

struct Options {
  std::shared_ptr<const Profile> profile;  // ROTA_SIM_PROFILE: a built-in card's name or a file; null = the default
  std::string unusable;                    // why ROTA_SIM_PROFILE cannot be used; nothing starts then

  std::string state_path;               // ROTA_SIM_STATE: the file shared by the processes of one simulated machine
  uint64_t memory = uint64_t{1} << 30;  // ROTA_SIM_MEMORY: bytes per GPU, suffixes K, M, G, T;
                                        // without it, the memory of the profile if one is named
  int gpus = 1;                         // ROTA_SIM_GPUS: 1 to 8
  uint64_t context_bytes = 0;  // ROTA_SIM_CONTEXT_BYTES: device memory that each context takes; 0 = profile's share
  std::vector<std::string> kernels;  // ROTA_SIM_KERNELS: libraries of kernels, separated by colons
  double time_scale = 1.0;           // ROTA_SIM_TIME_SCALE: real seconds per modelled second; 0 = no waiting
  bool virtual_clock = false;        // ROTA_SIM_CLOCK=virtual: modelled time is a counter, for one process (clock.h)
  int driver_version = 13000;        // ROTA_SIM_DRIVER_VERSION: what cuDriverGetVersion says, 1000 * major + 10 * minor
  std::string log;  // ROTA_SIM_LOG: "-" = stderr, else a file to append to; lists functions that are not simulated

  // ROTA_SIM_WRITTEN: the options of `rota sim` about the machine's shape, one per line. Unset: the whole shape was
  // requested.
  std::optional<std::string> written;
  bool skip_unregistered = false;  // ROTA_SIM_UNREGISTERED=skip: unregistered kernels do nothing, but take time

  static Options from_environment();
};

}  // namespace rota::sim
