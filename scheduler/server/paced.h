// Work whose cost grows with the number of clients. It is done at once if possible, and otherwise a little later, once
// for all requests until then, so that it takes no more than a small part of rotad's time however often it is
// requested. Work that may take long is done in parts, with other work in between.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <type_traits>
#include <utility>

#include "scheduler/server/guarded.h"
#include "scheduler/server/processor_time.h"

namespace rota::server {

class Paced {
 public:
  // How many times as long as the work took the pause after it is. A judgment.
  static constexpr int kRest = 8;

  // `pass` does all of the work; or a part of it, and returns whether that was the last part.
  template <typename Pass>
  Paced(asio::io_context& io, const char* what, Pass pass) : timer_(io), what_(what) {
    if constexpr (std::is_same_v<std::invoke_result_t<Pass>, bool>) {
      part_ = std::move(pass);
    } else {
      part_ = [pass = std::move(pass)] {
        pass();
        return true;
      };
    }
  }

  void run() {
    if (midway_) again_ = true;  // the parts that are done may have been done too early
    if (midway_ || waits_ || try_now()) return;
    wait(next_);
  }
  // Does nothing if the work would have to wait. Returns whether the work was done, or begun.
  bool try_now() {
    if (running_ || midway_ || std::chrono::steady_clock::now() < next_) return false;
    part();
    return true;
  }
  void cancel() { timer_.cancel(); }

 private:
  void wait(std::chrono::steady_clock::time_point until) {
    timer_.expires_at(until);
    timer_.async_wait([this](std::error_code error) {
      waits_ = midway_ = false;
      if (!error) part();
    });
    waits_ = true;  // set only now: there may have been no memory for the wait
  }
  void part() {
    const std::chrono::nanoseconds before = processor_time();
    bool last = true;
    running_ = true;
    guarded(what_, [&] { last = part_(); });
    running_ = false;
    took_ += processor_time() - before;
    const auto now = std::chrono::steady_clock::now();
    if (!last) {
      again_ |= waits_;
      wait(now);
      midway_ = true;
      return;
    }
    next_ = now + kRest * std::exchange(took_, {});
    if (std::exchange(again_, false)) wait(next_);
  }

  asio::steady_timer timer_;
  const char* const what_;  // as guarded() says it
  std::function<bool()> part_;
  std::chrono::steady_clock::time_point next_{};
  std::chrono::nanoseconds took_{};  // its parts so far
  bool waits_ = false;
  bool running_ = false;
  bool midway_ = false;  // waits to do the next part
  bool again_ = false;   // was wanted since it began
};

}  // namespace rota::server
