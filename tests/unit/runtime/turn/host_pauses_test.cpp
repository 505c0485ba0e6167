// For how long, and how often, a busy program's gate closes so that it gives back.
#include "runtime/turn/host_pauses.h"

#include <catch2/catch.hpp>

using namespace rota::turn;
using namespace std::chrono_literals;
using Rest = HostPauses::Rest;

namespace {

// A pause now, with this result: how long it was at most.
HostPauses::Pause pause(HostPauses& pauses, Time now, Rest rest, Time waited = 0ns) {
  const HostPauses::Pause planned = pauses.plan(now);
  pauses.over(planned, rest, waited != 0ns ? waited : planned.most, now + planned.most);
  return planned;
}

}  // namespace

TEST_CASE("a pause lasts a millisecond at most, and the next comes a quarter of a second later") {
  HostPauses pauses;
  CHECK(pauses.due(1s));
  const auto first = pause(pauses, 1s, Rest::kNotYet);
  CHECK_FALSE(first.longer);
  CHECK(first.most == 1ms);
  CHECK_FALSE(pauses.due(1s + 1ms));
  CHECK(pauses.due(1s + 251ms));
}

TEST_CASE("what others need for a while makes pauses longer and longer, and then rare") {
  HostPauses pauses;
  pauses.exceeds(true, 1s);
  CHECK_FALSE(pauses.presses(1s + 249ms));
  Time now = 1s + 250ms;
  REQUIRE(pauses.presses(now));
  Time last{0};
  int longest = 0;
  for (; now < 10min; now += 250ms) {
    const auto one = pause(pauses, now, Rest::kNotYet);
    if (!one.longer) continue;
    CHECK(one.most >= last);
    CHECK(one.most <= HostPauses::kLongestPause);
    last = one.most;
    longest += one.most == HostPauses::kLongestPause;
  }
  CHECK(last == HostPauses::kLongestPause);
  CHECK(longest >= 3);
  CHECK(longest <= 15);  // a minute between them in the end
}

TEST_CASE("after a pause in which nothing ran the next is about as long, and at once if it has to be") {
  HostPauses pauses;
  pauses.exceeds(true, 1s);
  const Time now = 2s;
  pause(pauses, now, Rest::kNotYet);
  CHECK_FALSE(pauses.plan(now + 1ms).longer);
  pause(pauses, now + 300ms, Rest::kProven, 20ms);
  CHECK(pauses.plan(now + 1s).longer);
  CHECK(pauses.plan(now + 1s).most == 40ms);
}

TEST_CASE("nothing is learned from a pause whose end cannot be told") {
  HostPauses pauses;
  pauses.exceeds(true, 1s);
  const auto first = pause(pauses, 2s, Rest::kCannotTell);
  CHECK(first.longer);
  CHECK(pauses.plan(3s).longer);
  CHECK(pauses.plan(3s).most == first.most);
}

TEST_CASE("a process with no more than its share is not asked to give back, whatever happened before") {
  HostPauses pauses;
  pauses.exceeds(true, 1s);
  pauses.exceeds(false, 2s);
  CHECK_FALSE(pauses.presses(3s));
  pauses.exceeds(true, 3s);
  CHECK_FALSE(pauses.presses(3s + 100ms));
}

TEST_CASE("that the host has no memory for an eviction is said once it has lasted a second") {
  HostPauses pauses;
  CHECK_FALSE(pauses.lacks(true, 1s));
  CHECK_FALSE(pauses.lacks(true, 1s + 999ms));
  CHECK(pauses.lacks(true, 2s));
  CHECK_FALSE(pauses.lacks(false, 3s));
  CHECK_FALSE(pauses.lacks(true, 3s + 1ms));
}
