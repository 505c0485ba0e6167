// A timer that is set again and again for the next moment at which something is due, most often for the same one.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "scheduler/server/guarded.h"

namespace rota::server {

class Alarm {
 public:
  // `due` does what is due, as guarded() says it.
  Alarm(asio::io_context& io, const char* what, std::function<void()> due)
      : timer_(io), what_(what), due_(std::move(due)) {}

  // Instead of the moment before; nullopt: for none. If there was no memory for the wait, or later for what was due, it
  // is set for none, and may be set for the same moment again.
  void set(std::optional<std::chrono::nanoseconds> at) {
    if (at == at_) return;
    cancel();
    if (!at) return;
    timer_.expires_at(asio::steady_timer::time_point(std::chrono::duration_cast<asio::steady_timer::duration>(*at)));
    timer_.async_wait([this](std::error_code error) {
      if (!error && !guarded(what_, due_)) at_ = std::nullopt;
    });
    at_ = at;
  }
  void cancel() {
    timer_.cancel();
    at_ = std::nullopt;
  }

 private:
  asio::steady_timer timer_;
  const char* const what_;
  const std::function<void()> due_;
  std::optional<std::chrono::nanoseconds> at_;
};

}  // namespace rota::server
