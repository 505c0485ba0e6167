// What a client has moved off its GPUs and back, as bursts: a switch consists of several attempts, whose sums its usage
// page shows.
#pragma once

#include <optional>
#include <string>

#include "scheduler/core/event.h"
#include "scheduler/protocol/pages.h"

namespace rota::server {

class Burst {
 public:
  // A longer move counts as several bursts. A judgment.
  static constexpr scheduler::Time kLongest = std::chrono::seconds(1);

  // Takes a reading, each later than the one before; returns what has moved since the last burst, if a burst has ended.
  std::optional<protocol::Moves> read(const protocol::Moves& sums, scheduler::Time now);
  // The last reading: what has moved since the last burst, if anything has.
  std::optional<protocol::Moves> end(const protocol::Moves& sums);

 private:
  protocol::Moves tell(const protocol::Moves& sums);

  protocol::Moves told_{};
  protocol::Moves last_{};
  std::optional<scheduler::Time> since_;  // nothing: nothing moves
};

protocol::Moves moves_of(const protocol::UsagePage& page);
// On one GPU, without what needed no copy.
protocol::Moves moves_of(const protocol::GpuUsage& gpu);
// "out 1048576 bytes at 50.1 GB/s, 0 without a copy; back 0 bytes"
std::string text_of(const protocol::Moves& moves);

}  // namespace rota::server
