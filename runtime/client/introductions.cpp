#include "runtime/client/introductions.h"

#include <utility>

namespace rota::client {

using protocol::Kind;
using protocol::Message;

bool Introductions::announce(const Number& number) {
  const std::lock_guard lock(mutex_);
  const bool first = !number_;
  number_ = number;
  return first;
}

void Introductions::wait_until_announced(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [this] { return told_; });
}

std::uint32_t Introductions::ask(const Number& number) {
  const std::lock_guard lock(mutex_);
  if (++last_ == 0) ++last_;
  requests_[last_] = {.number = number, .told = false, .answer = {}};
  return last_;
}

Introductions::Answer Introductions::wait(std::uint32_t request, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [&] { return requests_.at(request).answer.came; });
  auto ended = requests_.extract(request);
  return std::move(ended.mapped().answer);
}

bool Introductions::opened(const Number& number, bool is) {
  const std::lock_guard lock(mutex_);
  if (is) return opened_.size() < protocol::kMostOpened && opened_.try_emplace(number, false).second;
  const auto known = opened_.extract(number);
  if (!known || !known.mapped()) return false;
  closed_.push_back(number);
  return true;
}

std::vector<Message> Introductions::take_untold() {
  std::vector<Message> all;
  const std::lock_guard lock(mutex_);
  const auto say = [&](const Number& number, bool open) {
    Message message{.kind = Kind::kOpened};
    message.body.opened = {.number = number, .open = open ? 1U : 0U, .padding = 0};
    all.push_back(message);
  };
  for (const Number& number : std::exchange(closed_, {})) say(number, false);
  for (auto& [number, told] : opened_) {
    if (!std::exchange(told, true)) say(number, true);
  }
  if (number_ && !std::exchange(taken_, true)) {
    Message message{.kind = Kind::kAnnounce};
    message.body.announce = {.number = *number_};
    all.push_back(message);
  }
  for (auto& [number, request] : requests_) {
    if (std::exchange(request.told, true)) continue;
    Message message{.kind = Kind::kIntroduce};
    message.body.introduce = {.number = request.number, .request = number, .padding = 0};
    all.push_back(message);
  }
  return all;
}

void Introductions::told() {
  {
    const std::lock_guard lock(mutex_);
    if (!taken_ || std::exchange(told_, true)) return;
  }
  changed_.notify_all();
}

// A request whose thread no longer waits has been removed: its socket is closed.
void Introductions::answered(std::uint32_t request, Descriptor&& socket) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = requests_.find(request);
    if (found == requests_.end()) return;
    found->second.answer.came = true;
    found->second.answer.socket = std::move(socket);
  }
  changed_.notify_all();
}

void Introductions::connected() {
  const std::lock_guard lock(mutex_);
  taken_ = told_ = false;
  closed_.clear();
  for (auto& [number, told] : opened_) told = false;
  for (auto& [number, request] : requests_) request.told = request.answer.came;
}

}  // namespace rota::client
