#include "scheduler/server/control_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "scheduler/core/quoted.h"

namespace rota::server {

using scheduler::quoted;

namespace {

bool names_setting(std::string_view word) {
  return word == "mode" || word == "quantum" || word == "grace" || word == "nvml" || word == "reload" || word == "stop";
}

// The first word, and what follows it and its spaces.
std::pair<std::string_view, std::string_view> split(std::string_view text) {
  const std::size_t end = std::min(text.find(' '), text.size());
  const std::size_t next = std::min(text.find_first_not_of(' ', end), text.size());
  return {text.substr(0, end), text.substr(next)};
}

}  // namespace

Result<ControlRequest> parse_control(std::string_view text) {
  const auto [name, value] = split(text);
  // One setting per request, so that a request is carried out completely or not at all.
  if (const auto [first, rest] = split(value); names_setting(name) && names_setting(split(rest).first)) {
    return Error{fmt::format("one setting at a time: ask for {} by itself, and then for {}",
                             quoted(fmt::format("{} {}", name, first)), quoted(rest))};
  }
  if (name == "mode") {
    if (const auto mode = scheduler::parse_mode(value)) return ControlRequest(control::SetMode{*mode});
    return Error{fmt::format("{} is not a mode: use automatic, exclusive or concurrent", quoted(value))};
  }
  if (name == "quantum") {
    if (const auto quantum = scheduler::parse_quantum(value)) return ControlRequest(control::SetQuantum{*quantum});
    return Error{fmt::format("{} is not a duration above 0: use e.g. 100ms or 2s, or automatic", quoted(value))};
  }
  if (name == "grace") {
    if (const auto grace = scheduler::parse_duration(value)) return ControlRequest(control::SetGrace{*grace});
    return Error{fmt::format("{} is not a duration above 0: use e.g. 100ms or 2s", quoted(value))};
  }
  if (name == "nvml") {
    if (value == "release" || value == "use") return ControlRequest(control::UseNvml{value == "use"});
    return Error{fmt::format(
        "{} is neither release nor use: NVML is released for a driver to be unloaded, and used again", quoted(value))};
  }
  if (name == "reload") {
    if (value.empty()) return ControlRequest(control::Reload{});
    return Error{"reload takes no value"};
  }
  if (name == "stop") {
    if (value.empty()) return ControlRequest(control::Stop{});
    return Error{"stop takes no value"};
  }
  return Error{
      fmt::format("{} is not a setting of rotad: use mode, quantum, grace, nvml, reload or stop", quoted(name))};
}

}  // namespace rota::server
