// What a task's activity is counted as, without a GPU.
#include "runtime/turn/activity.h"

#include <catch2/catch.hpp>

using namespace rota::turn;
using namespace std::chrono_literals;
using Found = Activity::Found;

namespace {

constexpr Activity::Wants kSamples{.counts = true, .samples = true, .accounts = false, .holds = true};

// Looks whenever one is due, for this long; every sample finds the same.
int watch(Activity& activity, Time& now, Time time, Found found, const Activity::Wants& wants = kSamples) {
  int samples = 0;
  for (const Time until = now + time; now < until;) {
    if (activity.look(wants, now).sample) {
      activity.sampled(wants, found, now);
      ++samples;
    }
    now = activity.look_at() == Time::max() ? until : std::max(activity.look_at(), now + 1us);
  }
  return samples;
}

}  // namespace

TEST_CASE("nothing is sampled that nobody asks for, or while the gate is closed, or without a rotad") {
  Activity activity;
  CHECK_FALSE(activity.look(kSamples, 1s).sample);
  activity.connected(true);
  CHECK_FALSE(activity.look({.holds = true}, 1s).count);
  CHECK_FALSE(activity.look({.counts = true, .samples = true}, 1s).sample);
  CHECK(activity.look_at() == Time::max());
  CHECK(activity.look(kSamples, 1s).sample);
}

TEST_CASE("samples come about once a millisecond, and not in step with a rhythm of the program's") {
  Activity activity;
  activity.connected(true);
  Time now = 1s;
  const int samples = watch(activity, now, 1s, Found::kIdle);
  CHECK(samples > 700);
  CHECK(samples < 1500);
  CHECK(activity.sums().samples == static_cast<std::uint64_t>(samples));
  CHECK(activity.sums().busy_samples == 0);
}

TEST_CASE("five busy samples in a row are a busy period, and fewer are none") {
  Activity activity;
  activity.connected(true);
  for (int i = 0; i < 4; ++i) activity.sampled(kSamples, Found::kBusy, 1s + i * 1ms);
  CHECK(activity.sums().spell_samples == 0);
  activity.sampled(kSamples, Found::kIdle, 2s);
  for (int i = 0; i < 7; ++i) activity.sampled(kSamples, Found::kBusy, 3s + i * 1ms);
  CHECK(activity.sums().spell_samples == 7);
  CHECK(activity.sums().busy_samples == 11);
  activity.sampled(kSamples, Found::kNothing, 4s);
  CHECK(activity.sums().samples == 12);
}

TEST_CASE("a turn begins when the gate opens after its grant, and not with a grant that replaces another") {
  Activity activity;
  activity.connected(true);
  activity.granted(1, 1s);
  CHECK(activity.opened(1s + 3ms));
  CHECK_FALSE(activity.opened(1s + 4ms));
  activity.granted(2, 2s);
  CHECK_FALSE(activity.opened(2s));
  CHECK(activity.sums().switches == 1);
  CHECK(activity.sums().switch_ns == 3'000'000);
  activity.closed(3s);
  activity.granted(0, 3s);
  activity.granted(3, 5s);
  activity.opened(6s);
  CHECK(activity.open(7s) == 3s - (1s + 3ms) + 1s);
}

TEST_CASE("an account's samples are rarer, the rarer the less the program does, and stand for the time between them") {
  constexpr Activity::Wants kAccount{.counts = false, .samples = false, .accounts = true, .holds = true};
  Activity activity;
  activity.connected(true);
  Time now = 1s;
  CHECK(watch(activity, now, 10s, Found::kIdle, kAccount) < 1500);
  CHECK(activity.sums().samples == 0);
  CHECK(activity.look(kAccount, now).sample);
  const Time stands_for = activity.sampled(kAccount, Found::kBusy, now);
  CHECK(stands_for > 0ns);
  CHECK(stands_for < 50ms);
  activity.closed(now);
  CHECK(activity.sampled(kAccount, Found::kBusy, now + 1s) == 0ns);
}
