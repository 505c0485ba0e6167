// GPUs that rotad has chosen for programs (`rota run --gpus`) which have not named them yet. Pure: the time is a
// parameter.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/base/result.h"
#include "scheduler/base/uuid.h"

namespace rota::server {

// The process that asks. Its program is recognized by the same pid or session when it names a GPU.
struct Chooser {
  pid_t pid = 0;        // of `rota run`, and of the program if `rota run` executes it in its place; 0: not visible here
  std::string session;  // domain and session id, with a space in between
  std::string payer = {};  // TrustDomain::payer
  uid_t uid = 0;
};

class GpuChoice {
 public:
  struct Gpu {
    Uuid uuid;
    std::uint64_t total_bytes = 0;
    std::uint64_t taken_bytes = 0;
    std::uint32_t programs = 0;
  };

  // How long a program that has not used its GPUs yet is waited for.
  static constexpr std::chrono::seconds kExpected{60};
  // How many GPUs one user may have reserved at a time: 16 programs about to start that want 16 each. A judgment.
  static constexpr std::size_t kMostOfUser = 256;

  struct Reserved {
    Chooser who;
    Uuid uuid;
    std::chrono::nanoseconds until;
  };

  // Returns the `count` of these GPUs with the most capacity left, in their order, and reserves them for the chooser.
  // Earlier reservations of the chooser end. The error: the chooser's user would have more than kMostOfUser.
  Result<std::vector<Uuid>> choose(const Chooser& who, std::vector<Gpu> gpus, std::size_t count,
                                   std::chrono::nanoseconds now);
  // A program of these sessions has named the GPU. This ends one of the sessions' reservations of it, if possible the
  // one that was made by the program's own process.
  void came(pid_t pid, const std::vector<std::string>& sessions, const Uuid& uuid);
  // A process that asked has ended, and with it its reservations.
  void left(pid_t pid);
  std::size_t reserved(const Uuid& uuid, std::chrono::nanoseconds now);
  // The oldest first.
  const std::vector<Reserved>& all(std::chrono::nanoseconds now);
  // Adds a reservation that an earlier rotad has made.
  void keep(Reserved reserved) { reserved_.push_back(std::move(reserved)); }

 private:
  void forget_late(std::chrono::nanoseconds now);

  std::vector<Reserved> reserved_;  // the oldest first
};

}  // namespace rota::server
