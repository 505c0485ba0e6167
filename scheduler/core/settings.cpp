// Parses and prints modes and durations as command lines have them.
#include "scheduler/core/settings.h"

#include <charconv>
#include <cmath>

namespace rota::scheduler {
namespace {

constexpr std::string_view kAutomaticQuantum = "automatic";

}  // namespace

std::optional<Mode> parse_mode(std::string_view text) {
  for (const Mode mode : {Mode::kAutomatic, Mode::kExclusive, Mode::kConcurrent}) {
    if (text == mode_name(mode)) return mode;
  }
  return std::nullopt;
}

const char* mode_name(Mode mode) {
  switch (mode) {
    case Mode::kAutomatic:
      return "automatic";
    case Mode::kExclusive:
      return "exclusive";
    case Mode::kConcurrent:
      return "concurrent";
  }
  return "unknown";
}

std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(number)) return std::nullopt;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  double scale = 0;  // nanoseconds
  if (unit == "us") scale = 1e3;
  if (unit == "ms") scale = 1e6;
  if (unit == "s") scale = 1e9;
  if (unit == "m") scale = 60e9;
  const double nanoseconds = number * scale;
  constexpr double kDay = 86'400e9;
  if (!(nanoseconds >= 1) || nanoseconds > kDay) return std::nullopt;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(nanoseconds));
}

std::optional<std::chrono::nanoseconds> parse_wait(std::string_view text) {
  return text == "0" || text == "0s" ? std::chrono::nanoseconds{} : parse_duration(text);
}

std::optional<std::chrono::nanoseconds> parse_quantum(std::string_view text) {
  return text == kAutomaticQuantum ? std::chrono::nanoseconds{} : parse_duration(text);
}

void set_quantum(Settings& settings, std::chrono::nanoseconds quantum) {
  settings.measured_turns = quantum.count() == 0;
  settings.quantum = settings.measured_turns ? Settings{}.quantum : quantum;
}

std::chrono::nanoseconds quantum_of(const Settings& settings) {
  return settings.measured_turns ? std::chrono::nanoseconds{} : settings.quantum;
}

std::string quantum_text(std::chrono::nanoseconds quantum) {
  if (quantum.count() == 0) return std::string(kAutomaticQuantum);
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, static_cast<double>(quantum.count()) / 1e6);
  return std::string(text, end) + " ms";
}

}  // namespace rota::scheduler
