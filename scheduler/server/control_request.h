// Requests on the control socket: one line of text per packet, "mode exclusive", "quantum 100ms", "grace 5s",
// "nvml release", "nvml use", "reload" or "stop". One setting per packet.
#pragma once

#include <chrono>
#include <cstddef>
#include <string_view>
#include <variant>

#include "scheduler/base/result.h"
#include "scheduler/core/settings.h"

namespace rota::server {

inline constexpr std::size_t kMaxControlBytes = 256;  // of a request

namespace control {
struct SetMode {
  scheduler::Mode mode;
};
struct SetQuantum {
  std::chrono::nanoseconds quantum;  // 0: automatic
};
struct SetGrace {
  std::chrono::nanoseconds grace;
};
// Whether rotad may use NVML, and with it the driver.
struct UseNvml {
  bool use;
};
// Reads the configuration again.
struct Reload {};
struct Stop {};
}  // namespace control

using ControlRequest = std::variant<control::SetMode, control::SetQuantum, control::SetGrace, control::UseNvml,
                                    control::Reload, control::Stop>;

// The error is for the peer: one line of printable text.
Result<ControlRequest> parse_control(std::string_view text);

}  // namespace rota::server
