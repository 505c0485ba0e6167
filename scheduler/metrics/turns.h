// One program's turns on one GPU, as they are counted: how long it holds it and waits for it.
#pragma once

#include <algorithm>
#include <chrono>

#include "scheduler/protocol/totals.h"

namespace rota::metrics {

class Turns {
 public:
  explicit Turns(std::chrono::nanoseconds now) : since_(now), waits_since_(now) {}

  // What it does from now on; what it has done until then is counted. At the same state again, up to now.
  void follow(bool holds, bool waits, std::chrono::nanoseconds now, protocol::Totals& totals,
              protocol::GpuTotals& gpu) {
    const std::uint64_t passed = ns(now - since_);
    if (holds_) totals.held_ns += passed;
    if (waits_) totals.waited_ns += passed;
    if (waits && !waits_) waits_since_ = now;
    if (holds && !holds_) {
      gpu.waits.add(protocol::kWaitBounds, waits_ ? ns(now - waits_since_) : 0);
      ++grants_;
    }
    holds_ = holds;
    waits_ = waits;
    since_ = now;
  }

  // What the program says of its turns so far: how many, and how long they took to begin in all. It is believed as far
  // as it can be true.
  void say_switches(std::uint64_t switches, std::uint64_t ns_in_all, protocol::GpuTotals& gpu) {
    const std::uint64_t more = std::min(switches - std::min(switches, switches_), grants_);
    const std::uint64_t took = ns_in_all - std::min(ns_in_all, switch_ns_);
    switches_ = switches;
    switch_ns_ = ns_in_all;
    if (more == 0) return;
    grants_ = 0;
    gpu.hand_overs.add(protocol::kHandOverBounds, std::min(took / more, kLongest), more);
  }
  // The same, of what it did before it was counted.
  void start_at(std::uint64_t switches, std::uint64_t ns_in_all) {
    switches_ = switches;
    switch_ns_ = ns_in_all;
  }
  bool holds() const { return holds_; }

 private:
  static constexpr std::uint64_t kLongest = 3'600'000'000'000;
  static std::uint64_t ns(std::chrono::nanoseconds time) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, time.count()));
  }

  bool holds_ = false;
  bool waits_ = false;
  std::chrono::nanoseconds since_;
  std::chrono::nanoseconds waits_since_;
  std::uint64_t grants_ = 0;  // since it last said something new of its switches
  std::uint64_t switches_ = 0;
  std::uint64_t switch_ns_ = 0;
};

}  // namespace rota::metrics
