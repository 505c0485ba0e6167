// The scheduler's settings, and how they are parsed from a command line.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "scheduler/protocol/protocol.h"

namespace rota::scheduler {

using protocol::Mode;
// Since the epoch of CLOCK_MONOTONIC, as on the lease page. The core itself never reads a clock.
using Time = std::chrono::nanoseconds;

struct Settings {
  Mode mode = Mode::kAutomatic;
  // How long a holder runs undisturbed while others wait. With measured turns it applies only to holders whose memory
  // does not fit together: until their first hand-over has been measured, and always if it is Unified Memory.
  // Judgement: long compared with the 3 to 30 ms that a drain takes, short compared with what a person notices as a
  // stall.
  std::chrono::nanoseconds quantum = std::chrono::seconds(2);
  // Turns are as long as their hand-overs make worthwhile, the client that has had least of the GPU goes first, and
  // automatic mode also chooses between turns and running all at once (sharing.h). Without it: turns of one quantum,
  // first come, first served.
  bool measured_turns = false;
  // How long after its time is up a holder may continue to drain before it is revoked and others run concurrently.
  std::chrono::nanoseconds grace = std::chrono::seconds(10);
  // A client counts with its peak memory within this time, so that one that frees and allocates in every iteration does
  // not make automatic mode change its mind each time.
  std::chrono::nanoseconds memory_window = std::chrono::seconds(2);
};

// "automatic", "exclusive" or "concurrent"; nothing for any other word.
std::optional<Mode> parse_mode(std::string_view text);
const char* mode_name(Mode mode);

// "500us", "100ms", "2s", "1.5s", "1m": a positive number and its unit, at most a day. Nothing for anything else,
// including 0: with a quantum of 0 all time would be spent on switching.
std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text);
// The same, or "0".
std::optional<std::chrono::nanoseconds> parse_wait(std::string_view text);

// A duration, or "automatic" for measured turns: 0.
std::optional<std::chrono::nanoseconds> parse_quantum(std::string_view text);
void set_quantum(Settings& settings, std::chrono::nanoseconds quantum);
// The inverse of the above; "automatic" or "100 ms".
std::chrono::nanoseconds quantum_of(const Settings& settings);
std::string quantum_text(std::chrono::nanoseconds quantum);

}  // namespace rota::scheduler
