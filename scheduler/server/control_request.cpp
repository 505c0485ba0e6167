#include "scheduler/server/control_request.h"

#include <fmt/format.h>

#include <algorithm>

namespace rota::server {
namespace {

std::string printable(std::string_view text) {
  std::string result(text.substr(0, 40));
  std::replace_if(result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return result;
}

}  // namespace

Result<ControlRequest> parse_control(std::string_view text) {
  const std::size_t space = text.find(' ');
  const std::string_view name = text.substr(0, space);
  const std::string_view value = space == std::string_view::npos ? std::string_view() : text.substr(space + 1);
  if (name == "mode") {
    if (const auto mode = scheduler::parse_mode(value)) return ControlRequest(control::SetMode{*mode});
    return Error{fmt::format("'{}' is no mode: use automatic, exclusive or concurrent", printable(value))};
  }
  if (name == "quantum" || name == "grace") {
    const auto duration = scheduler::parse_duration(value);
    if (!duration) return Error{fmt::format("'{}' is no duration above 0: use e.g. 100ms or 2s", printable(value))};
    if (name == "grace") return ControlRequest(control::SetGrace{*duration});
    return ControlRequest(control::SetQuantum{*duration});
  }
  if (name == "stop") {
    if (space == std::string_view::npos) return ControlRequest(control::Stop{});
    return Error{"stop takes no value"};
  }
  return Error{fmt::format("'{}' is no setting of rotad's: use mode, quantum, grace or stop", printable(name))};
}

}  // namespace rota::server
