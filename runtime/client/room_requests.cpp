#include "runtime/client/room_requests.h"

namespace rota::turn {

std::uint32_t RoomRequests::ask(int device, const protocol::AwaitRoom& request) {
  const std::lock_guard lock(mutex_);
  Open open{.device = device, .request = request, .told = false, .answer = {}};
  open.request.number = ++last_;
  open_.emplace(last_, open);
  return last_;
}

std::optional<bool> RoomRequests::answer(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  return open_.at(number).answer;
}

void RoomRequests::end(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  open_.erase(number);
}

void RoomRequests::connected() {
  const std::lock_guard lock(mutex_);
  for (auto& [number, open] : open_) open.told = open.answer.has_value();
}

std::vector<std::pair<int, protocol::AwaitRoom>> RoomRequests::take_untold() {
  std::vector<std::pair<int, protocol::AwaitRoom>> all;
  const std::lock_guard lock(mutex_);
  for (auto& [number, open] : open_) {
    if (!std::exchange(open.told, true)) all.emplace_back(open.device, open.request);
  }
  return all;
}

void RoomRequests::answered(const protocol::TryAgain& answer) {
  const std::lock_guard lock(mutex_);
  if (const auto open = open_.find(answer.number); open != open_.end()) open->second.answer = answer.again != 0;
}

}  // namespace rota::turn
