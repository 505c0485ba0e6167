// What the scheduler can be told, and how the words of a command line become that.
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
  // How long a holder runs undisturbed while others wait; with measured turns: of those whose memory does not fit
  // together, until their first hand-over has been measured, and always where it is Unified Memory. Judgement: long
  // against the 3 to 30 ms that a drain takes, short against what a person notices as a stall.
  std::chrono::nanoseconds quantum = std::chrono::seconds(2);
  // Turns are as long as their hand-overs make worth while, who has had least of the GPU comes first, and automatic
  // mode also decides between turns and all at once (sharing.h). Without: turns of one quantum, first come first
  // served.
  bool measured_turns = false;
  // How long after its time is up a holder may go on draining before it is revoked and others run beside it.
  std::chrono::nanoseconds grace = std::chrono::seconds(10);
  // A client counts with the most memory it has used within this time, so that one that frees and allocates in every
  // iteration does not make automatic mode change its mind each time.
  std::chrono::nanoseconds memory_window = std::chrono::seconds(2);
};

// "automatic", "exclusive" or "concurrent"; nothing for any other word.
std::optional<Mode> parse_mode(std::string_view text);
const char* mode_name(Mode mode);

// "500us", "100ms", "2s", "1.5s", "1m": a positive number and its unit, at most a day. Nothing for everything else,
// 0 included: a quantum of 0 would be spent on switching alone.
std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text);

// A duration, or "automatic" for measured turns: 0.
std::optional<std::chrono::nanoseconds> parse_quantum(std::string_view text);
void set_quantum(Settings& settings, std::chrono::nanoseconds quantum);
// The same the other way round; "automatic" or "100 ms".
std::chrono::nanoseconds quantum_of(const Settings& settings);
std::string quantum_text(std::chrono::nanoseconds quantum);

}  // namespace rota::scheduler
