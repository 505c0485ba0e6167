#include "runtime/turn/activity.h"

#include <algorithm>

namespace rota::turn {

using namespace std::chrono_literals;

namespace {

constexpr Time kCount = 50ms;
// The average time between two samples; it varies, so that samples do not coincide with a program's own rhythm.
constexpr Time kBetweenSamples = 1ms;
// The account needs fewer samples. While the process keeps the GPU busy, the interval is a hundredth of the time
// sampled so far, up to the first value; while the process makes no calls, up to the second.
constexpr Time kBetweenBusySamples = 4ms;
constexpr Time kBetweenIdleSamples = 20ms;
constexpr int kEnoughSamples = 100;
// Busy samples in a row that make a busy period.
constexpr std::uint64_t kBusyPeriod = 5;

}  // namespace

void Activity::connected(bool is) {
  connected_ = is;
  grant_ = 0;
  opens_ = false;
  look_at_ = Time::max();
}

void Activity::granted(std::uint32_t grant, Time now) {
  if (grant == grant_) return;
  // A grant that replaces another does not begin a turn.
  opens_ = grant_ == 0;
  grant_ = grant;
  granted_at_ = now;
}

bool Activity::opened(Time now) {
  if (grant_ != 0 && open_since_ == Time{0}) open_since_ = now;
  if (!opens_ || grant_ == 0 || !connected_) return false;
  opens_ = false;
  sums_.switch_ns += static_cast<std::uint64_t>((now - granted_at_).count());
  ++sums_.switches;
  return true;
}

void Activity::closed(Time now) {
  busy_in_a_row_ = 0;
  sampled_at_ = Time{0};
  open_ = open(now);
  open_since_ = Time{0};
}

Activity::Todo Activity::look(const Wants& wants, Time now) {
  look_at_ = Time::max();
  const bool counts = wants.counts || wants.samples;
  if ((!counts && !wants.accounts) || !wants.holds || !connected_) return {};
  Todo todo;
  todo.count = counts;
  if (counts) look_at_ = now + kCount;
  if (!wants.samples && !wants.accounts) return todo;
  if (wants.samples) between_ = kBetweenSamples;
  todo.sample = now >= sample_at_;
  look_at_ = std::min(look_at_, sample_at_);
  return todo;
}

Time Activity::sampled(const Wants& wants, Found found, Time now) {
  if (wants.samples && found != Found::kNothing) {
    const bool busy = found == Found::kBusy;
    busy_in_a_row_ = busy ? busy_in_a_row_ + 1 : 0;
    if (busy_in_a_row_ >= kBusyPeriod) sums_.spell_samples += busy_in_a_row_ == kBusyPeriod ? kBusyPeriod : 1;
    if (busy) ++sums_.busy_samples;
    ++sums_.samples;
  }
  Time stands_for{0};
  if (wants.accounts && found != Found::kNothing && sampled_at_ != Time{0}) {
    stands_for = now - sampled_at_;
    sampled_ += stands_for;
  }
  sampled_at_ = now;
  if (!wants.samples) {
    between_ = found == Found::kBusy ? std::min(sampled_ / kEnoughSamples, kBetweenBusySamples)
                                     : std::min(between_ * 2, kBetweenIdleSamples);
    between_ = std::max(between_, kBetweenSamples);
  }
  sample_at_ = now + between_ / 2 + between_ * static_cast<int>(jitter_() % 1024) / 1024;
  look_at_ = sample_at_;
  if (wants.counts || wants.samples) look_at_ = std::min(look_at_, now + kCount);
  return stands_for;
}

}  // namespace rota::turn
