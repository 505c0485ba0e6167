// How much of the event loop's time each user's messages take. Where several users have connections, one whose messages
// have taken more than its part lately is read again once others have had the chance to be: so a flood of messages,
// over however many connections, delays its sender.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

namespace rota::server {

class TimeBudget {
 public:
  using Clock = std::chrono::steady_clock;
  // The part of the time that one user's messages may take in the long run, and how much at once. Judgment: a program
  // that works takes less than a thousandth.
  static constexpr int kPart = 4;
  static constexpr std::chrono::nanoseconds kAtOnce = std::chrono::milliseconds(5);

  // The user has one connection more.
  void enter(const std::string& payer, Clock::time_point now = Clock::now()) {
    // A user without connections is remembered until what it spent no longer counts.
    std::erase_if(users_, [&](const auto& user) {
      return user.second.connections == 0 && left(user.second, now) == std::chrono::nanoseconds(0);
    });
    if (users_[payer].connections++ == 0) ++connected_;
  }
  void leave(const std::string& payer) {
    if (--users_.at(payer).connections == 0) --connected_;
  }
  void spend(const std::string& payer, std::chrono::nanoseconds time, Clock::time_point now = Clock::now()) {
    User& user = users_[payer];
    user.spent = left(user, now) + time;
    user.at = now;
  }
  // When the user's next message may be read; the past or now: at once.
  Clock::time_point next(const std::string& payer, Clock::time_point now = Clock::now()) const {
    const auto user = users_.find(payer);
    if (connected_ < 2 || user == users_.end()) return now;
    const std::chrono::nanoseconds over = left(user->second, now) - kAtOnce;
    return now + std::max(over, std::chrono::nanoseconds(0)) * kPart;
  }

 private:
  struct User {
    std::size_t connections = 0;
    std::chrono::nanoseconds spent{};  // at that time; less with time
    Clock::time_point at{};
  };
  static std::chrono::nanoseconds left(const User& user, Clock::time_point now) {
    return std::max(user.spent - (now - user.at) / kPart, std::chrono::nanoseconds(0));
  }

  std::map<std::string, User> users_;
  std::size_t connected_ = 0;
};

}  // namespace rota::server
