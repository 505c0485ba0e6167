// Work whose cost grows with the number of clients takes a small part of rotad's time, however often it is requested.
#include "scheduler/server/paced.h"

#include <asio/post.hpp>
#include <catch2/catch.hpp>
#include <functional>
#include <stdexcept>

namespace rota::test {
namespace {

using namespace std::chrono_literals;
using server::Paced;
using server::processor_time;

// Keeps the processor busy.
void work(std::chrono::nanoseconds time) {
  for (const auto until = processor_time() + time; processor_time() < until;) {
  }
}

TEST_CASE("a pass that is wanted again and again takes a small part of the time, and the last wish is fulfilled") {
  asio::io_context io;
  int wanted = 0;
  int seen = 0;
  std::chrono::nanoseconds passes{};
  Paced paced(io, "work", [&] {
    work(500us);
    passes += 500us;
    seen = wanted;
  });
  const auto begun = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begun < 100ms) {
    ++wanted;
    paced.run();
    if (wanted == 1) CHECK(seen == 1);  // the first at once
    io.poll();
    io.restart();
  }
  const auto took = std::chrono::steady_clock::now() - begun;
  CHECK(passes <= took / Paced::kRest + 500us);
  io.run();
  CHECK(seen == wanted);
}

TEST_CASE("a pass that fails, or wants itself, is done again later") {
  asio::io_context io;
  int passes = 0;
  Paced* again = nullptr;
  Paced paced(io, "work", [&] {
    if (++passes < 3) again->run();
    if (passes == 1) throw std::runtime_error("once");
  });
  again = &paced;
  paced.run();
  CHECK(passes == 1);
  io.run();
  CHECK(passes == 3);
}

TEST_CASE("what can be left out is left out while the work rests") {
  asio::io_context io;
  int passes = 0;
  Paced paced(io, "work", [&] {
    ++passes;
    work(5ms);
  });
  CHECK(paced.try_now());
  CHECK_FALSE(paced.try_now());
  io.run();
  CHECK(passes == 1);
}

TEST_CASE("work that takes long lets others have their turn in between, and rests for all of it") {
  asio::io_context io;
  int parts = 0;
  int between = 0;
  Paced paced(io, "work", [&] {
    work(2ms);
    return ++parts % 5 == 0;
  });
  paced.run();
  CHECK(parts == 1);
  std::function<void()> other = [&] {
    ++between;
    if (parts < 5) asio::post(io, other);
  };
  asio::post(io, other);
  CHECK_FALSE(paced.try_now());
  const auto begun = std::chrono::steady_clock::now();
  SECTION("what is wanted meanwhile is done from the beginning after that") {
    paced.run();
    io.run();
    CHECK(parts == 10);
    CHECK(std::chrono::steady_clock::now() - begun >= 8ms + Paced::kRest * 10ms);
  }
  SECTION("once is enough otherwise") {
    io.run();
    CHECK(parts == 5);
  }
  CHECK(between >= 5);
  CHECK_FALSE(paced.try_now());
}

}  // namespace
}  // namespace rota::test
