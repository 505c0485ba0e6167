// A program that waits at the gate for a long time says so, or its user would think that it hangs: at most three lines
// in a process's life, after 1, 10 and 60 s, and none below ROTA_LOG=warn.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/protocol/protocol.h"

namespace rota::turn {

class Waiting {
 public:
  // `for_whom` is called on the waiting thread, with no lock held; it returns "GPU 0, held by pid 12 (memhog, alice)".
  explicit Waiting(std::function<std::string()> for_whom) : for_whom_(std::move(for_whom)) {}

  // See gate::Attendant::stands(). Any thread; if several wait, one reports.
  std::optional<std::chrono::nanoseconds> stands(std::chrono::nanoseconds so_long);

 private:
  std::function<std::string()> for_whom_;
  std::atomic<std::size_t> said_{0};
};

// Asks rotad for whom this process waits. Takes at most half a second; without an answer it says less.
std::string who_holds();
// The same from rotad's list of clients. A process that is not in it by its own pid is in another pid namespace than
// rotad: then only the GPU that all waiting programs want can be meant, and pids say nothing to it.
std::string holder_of(const std::vector<protocol::StatusClient>& clients, std::int32_t own_pid);

}  // namespace rota::turn
