// Work whose cost grows with the number of clients. It is done at once where it can be, and otherwise a little later,
// for all who wanted it by then, so that it takes no more than a small part of rotad's time however often it is wanted.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <utility>

#include "scheduler/server/guarded.h"
#include "scheduler/server/processor_time.h"

namespace rota::server {

class Paced {
 public:
  // It rests for so many times as long as it took. A judgment.
  static constexpr int kRest = 8;

  Paced(asio::io_context& io, const char* what, std::function<void()> pass)
      : timer_(io), what_(what), pass_(std::move(pass)) {}

  void run() {
    if (waits_ || try_now()) return;
    timer_.expires_at(next_);
    timer_.async_wait([this](std::error_code error) {
      waits_ = false;
      if (!error) pass();
    });
    waits_ = true;  // now: there may have been no memory for that
  }
  // Does nothing where it would have to wait. Returns whether it was done.
  bool try_now() {
    if (running_ || std::chrono::steady_clock::now() < next_) return false;
    pass();
    return true;
  }
  void cancel() { timer_.cancel(); }

 private:
  void pass() {
    const std::chrono::nanoseconds before = processor_time();
    running_ = true;
    guarded(what_, pass_);
    running_ = false;
    next_ = std::chrono::steady_clock::now() + kRest * (processor_time() - before);
  }

  asio::steady_timer timer_;
  const char* const what_;  // as guarded() says it
  const std::function<void()> pass_;
  std::chrono::steady_clock::time_point next_{};
  bool waits_ = false;
  bool running_ = false;
};

}  // namespace rota::server
