// Allocations of this process that wait for memory of others which cannot be evicted (protocol::Kind::kAwaitRoom): the
// program's threads ask and wait, and the monitor's thread carries the questions to rotad and the answers back.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/protocol/protocol.h"

namespace rota::client {

class RoomRequests {
 public:
  using Clock = std::chrono::steady_clock;
  // Any thread. `request`: without the GPU's index and the number. Returns its number; end() must follow.
  std::uint32_t ask(int device, const protocol::AwaitRoom& request);
  // Whether the driver may be asked again; nothing: there is no answer yet. A rotad that says nothing for `patience`
  // has refused, and one that has said only that the request waits is asked again in between.
  std::optional<bool> answer(std::uint32_t number, Clock::duration patience);
  // Whether a rotad has said yes or no.
  bool is_answered(std::uint32_t number);
  void end(std::uint32_t number);

  // The monitor. A new rotad is asked everything again.
  void connected();
  // Returned once to each rotad, with the device that it concerns.
  std::vector<std::pair<int, protocol::AwaitRoom>> take_untold();
  // The request could not be sent yet.
  void untold(std::uint32_t number);
  void answered(const protocol::TryAgain& answer);

 private:
  struct Open {
    int device;
    protocol::AwaitRoom request;
    bool told = false;
    std::optional<bool> answer;
    Clock::time_point heard;  // when a rotad has last answered, or the request was made
  };
  std::mutex mutex_;
  std::map<std::uint32_t, Open> open_;
  std::uint32_t last_ = 0;
};

}  // namespace rota::client
