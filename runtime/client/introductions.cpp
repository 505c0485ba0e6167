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
  const std::uint32_t request = next();
  requests_[request] = {.number = number, .told = false, .answer = {}};
  return request;
}

// With the lock held.
std::uint32_t Introductions::next() {
  return ++last_ != 0 ? last_ : ++last_;
}

Introductions::Answer Introductions::wait(std::uint32_t request, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [&] { return requests_.at(request).answer.came; });
  auto ended = requests_.extract(request);
  return std::move(ended.mapped().answer);
}

std::vector<Message> Introductions::take_untold() {
  std::vector<Message> all;
  const std::lock_guard lock(mutex_);
  if (number_ && !std::exchange(taken_, true)) {
    Message message{.kind = Kind::kAnnounce};
    message.body.announce = {.number = *number_};
    all.push_back(message);
  }
  const auto ask_for = [&](const Number& number, std::uint32_t request) {
    Message message{.kind = Kind::kIntroduce};
    message.body.introduce = {.number = number, .request = request, .padding = 0};
    all.push_back(message);
  };
  for (auto& [number, request] : requests_) {
    if (!std::exchange(request.told, true)) ask_for(request.number, number);
  }
  if (std::exchange(met_told_, true)) return all;
  for (const Number& number : met_) ask_for(number, next());
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
    if (socket && met_.size() < kMostMet) met_.insert(found->second.number);
    found->second.answer.socket = std::move(socket);
  }
  changed_.notify_all();
}

void Introductions::connected() {
  const std::lock_guard lock(mutex_);
  taken_ = told_ = met_told_ = false;
  for (auto& [number, request] : requests_) request.told = request.answer.came;
}

}  // namespace rota::client
