// GPUs that rotad has chosen for programs which have not come to them yet (`rota run --gpus`). Pure: time is given.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scheduler/base/uuid.h"

namespace rota::server {

// Who asks, and by which it is known once it has come.
struct Chooser {
  pid_t pid = 0;        // of `rota run`, and of the program if that takes its place; 0: not seen here
  std::string session;  // domain and id
};

class GpuChoice {
 public:
  struct Gpu {
    Uuid uuid;
    std::uint64_t total_bytes = 0;
    std::uint64_t taken_bytes = 0;
    std::uint32_t programs = 0;
  };

  // After which a program that has not come is no longer expected.
  static constexpr std::chrono::seconds kExpected{60};

  // The `count` of these with most room, and reserves them for the chooser in place of what that had reserved before.
  std::vector<Uuid> choose(const Chooser& who, std::vector<Gpu> gpus, std::size_t count, std::chrono::nanoseconds now);
  // A program of these sessions names the GPU: one reservation of it is over, that of its own process first.
  void came(pid_t pid, const std::vector<std::string>& sessions, const Uuid& uuid);
  // The process that asked has ended.
  void left(pid_t pid);
  std::size_t reserved(const Uuid& uuid, std::chrono::nanoseconds now);

 private:
  struct Reserved {
    Chooser who;
    Uuid uuid;
    std::chrono::nanoseconds until;
  };
  void forget_late(std::chrono::nanoseconds now);

  std::vector<Reserved> reserved_;  // the oldest first
};

}  // namespace rota::server
