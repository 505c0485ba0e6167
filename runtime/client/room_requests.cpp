#include "runtime/client/room_requests.h"

namespace rota::client {

std::uint32_t RoomRequests::ask(int device, const protocol::AwaitRoom& request) {
  const std::lock_guard lock(mutex_);
  Open open{.device = device, .request = request, .told = false, .answer = {}, .heard = Clock::now()};
  open.request.number = ++last_;
  open_.emplace(last_, open);
  return last_;
}

std::optional<bool> RoomRequests::answer(std::uint32_t number, Clock::duration patience) {
  const std::lock_guard lock(mutex_);
  Open& open = open_.at(number);
  if (open.answer) return open.answer;
  const Clock::duration silent = Clock::now() - open.heard;
  if (silent > patience) return false;
  if (silent > patience / 2) open.told = false;
  return std::nullopt;
}

bool RoomRequests::is_answered(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  return open_.at(number).answer.has_value();
}

void RoomRequests::end(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  open_.erase(number);
}

void RoomRequests::connected() {
  const std::lock_guard lock(mutex_);
  for (auto& [number, open] : open_) {
    open.told = open.answer.has_value();
    open.heard = Clock::now();
  }
}

std::vector<std::pair<int, protocol::AwaitRoom>> RoomRequests::take_untold() {
  std::vector<std::pair<int, protocol::AwaitRoom>> all;
  const std::lock_guard lock(mutex_);
  for (auto& [number, open] : open_) {
    if (!std::exchange(open.told, true)) all.emplace_back(open.device, open.request);
  }
  return all;
}

void RoomRequests::untold(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  if (const auto open = open_.find(number); open != open_.end()) open->second.told = false;
}

void RoomRequests::answered(const protocol::TryAgain& answer) {
  const std::lock_guard lock(mutex_);
  const auto open = open_.find(answer.number);
  if (open == open_.end()) return;
  open->second.heard = Clock::now();
  if (answer.answer != protocol::TryAgain::Answer::kWaits) {
    open->second.answer = answer.answer == protocol::TryAgain::Answer::kAgain;
  }
}

}  // namespace rota::client
