// A program that stands at the gate for long says so, or its user would take it for hung: three lines at most in a
// process's life, once it has stood there for 1, for 10 and for 60 s, and none below ROTA_LOG=warn.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace rota::turn {

class Waiting {
 public:
  // `for_whom` is asked on the thread that waits, with no lock held: "GPU 0, held by pid 12 (memhog, alice)".
  explicit Waiting(std::function<std::string()> for_whom) : for_whom_(std::move(for_whom)) {}

  // See gate::Attendant::stands(). Any thread; of several one says it.
  std::optional<std::chrono::nanoseconds> stands(std::chrono::nanoseconds so_long);

 private:
  std::function<std::string()> for_whom_;
  std::atomic<std::size_t> said_{0};
};

// Asks rotad for whom this process waits. Takes at most half a second, and then says less.
std::string who_holds();

}  // namespace rota::turn
