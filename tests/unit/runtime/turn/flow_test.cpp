// How much of a stream's work may be in flight, without a driver.
#include "runtime/turn/flow.h"

#include <catch2/catch.hpp>

using namespace rota::turn;
using namespace std::chrono_literals;

namespace {

// A stream whose calls take this long each, on a GPU that works on nothing else.
struct Stream {
  explicit Stream(Time each) : each(each) {}
  bool call() {
    const Flow::Answer answer = flow.may_call(calls);
    if (answer == Flow::Answer::kWait) return false;
    if (answer == Flow::Answer::kMark) {
      flow.begins_mark();
      flow.marked(calls, now);
      marks.push_back(calls);
    }
    if (calls == done) busy_since = now;
    ++calls;
    return true;
  }
  void pass(Time time) {
    now += time;
    for (; done < calls && now - busy_since >= each; ++done) busy_since += each;
    for (; !marks.empty() && marks.front() <= done; marks.erase(marks.begin())) flow.passed(now);
  }

  Flow flow;
  Time each;
  Time now = 1s;
  Time busy_since{0};
  std::uint64_t calls = 0;
  std::uint64_t done = 0;
  std::vector<std::uint64_t> marks;
};

}  // namespace

TEST_CASE("a stream learns how long its calls take, and has no more than some milliseconds of them in flight") {
  for (const Time each : {200us, 500us, 1000us}) {
    Stream stream(each);
    std::uint64_t most = 0;
    for (int round = 0; round < 1000; ++round) {
      while (stream.call()) {
      }
      if (round > 500) most = std::max(most, stream.calls - stream.done);
      stream.pass(100us);
    }
    INFO(each.count());
    CHECK(static_cast<int>(most) * each <= 2 * Flow::kInFlight);
    CHECK(static_cast<int>(most) * each >= Flow::kInFlight / 2);
  }
}

TEST_CASE("nobody need ask before the next mark is due or too much is in flight") {
  Stream stream(1ms);
  while (stream.call()) {
  }
  CHECK(stream.flow.free_until() <= stream.calls);
  CHECK(stream.flow.may_call(stream.calls) == Flow::Answer::kWait);
  stream.pass(1s);
  CHECK(stream.flow.may_call(stream.calls) != Flow::Answer::kWait);
}

TEST_CASE("while a mark is being made no other is, and what waits for it waits") {
  Flow flow;
  REQUIRE(flow.may_call(1) == Flow::Answer::kMark);
  flow.begins_mark();
  CHECK(flow.in_use());
  CHECK(flow.may_call(1) == Flow::Answer::kGo);
  CHECK(flow.may_call(100) == Flow::Answer::kWait);
  flow.not_marked();
  CHECK(flow.may_call(100) == Flow::Answer::kMark);  // nothing is measured: nothing is held back
}

TEST_CASE("where no mark passes for 20 ms the stream has as much again") {
  Stream stream(1h);
  while (stream.call()) {
  }
  CHECK_FALSE(stream.flow.stalls(stream.calls, stream.now + Flow::kNothingPasses - 1ns));
  CHECK(stream.flow.stalls(stream.calls, stream.now + Flow::kNothingPasses));
  CHECK(stream.call());
  CHECK_FALSE(Flow().stalls(0, 1h));  // nothing is in flight
}

TEST_CASE("what was in flight counts as passed once its marks are lost") {
  Stream stream(1h);
  while (stream.call()) {
  }
  stream.flow.forget(stream.calls);
  CHECK_FALSE(stream.flow.in_use());
  CHECK(stream.flow.may_call(stream.calls) == Flow::Answer::kGo);
}
