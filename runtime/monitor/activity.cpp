#include "runtime/monitor/activity.h"

#include <algorithm>
#include <bit>
#include <thread>
#include <utility>

#include "runtime/account/account.h"

namespace rota::turn {

using namespace std::chrono_literals;

namespace {

constexpr Time kCount = 50ms;
// The average time between two samples; it varies, so that samples do not coincide with a program's own rhythm.
constexpr Time kBetweenSamples = 1ms;
// An account needs fewer: while the process keeps the GPU busy up to this, a hundredth of the time sampled so far;
// while it makes no calls up to the second.
constexpr Time kBetweenBusySamples = 4ms;
constexpr Time kBetweenIdleSamples = 20ms;
constexpr int kEnoughSamples = 100;
// An idle context passes a mark in 0.5 to 4.9 us (measured): one that has not after this long is busy.
constexpr Time kPassedByThen = 25us;
// Busy samples in a row that make a spell.
constexpr std::uint64_t kSpell = 5;

}  // namespace

void Activity::connected(protocol::UsagePage* page) {
  page_ = page;
  grant_ = 0;
  opens_ = false;
  look_at_ = Time::max();
  if (page_ == nullptr) return;
  gpus_ = 0;
}

void Activity::serve(GpuMask gpus, gate::Devices devices) {
  devices_ = devices;
  if (std::exchange(gpus_, gpus) != gpus) tell_all();
}

void Activity::tell_all() {
  tell(&protocol::GpuUsage::spell_samples, in_spells_);
  tell(&protocol::GpuUsage::busy_samples, busy_);
  tell(&protocol::GpuUsage::samples, samples_);
  tell(&protocol::GpuUsage::switch_ns, switching_ns_);
  tell(&protocol::GpuUsage::switches, switches_);
}

void Activity::tell(std::atomic<std::uint64_t> protocol::GpuUsage::* what, std::uint64_t value) {
  if (page_ == nullptr) return;
  for (GpuMask rest = gpus_; rest != 0; rest &= rest - 1) (page_->gpus[std::countr_zero(rest)].*what).store(value);
}

void Activity::granted(std::uint32_t grant, Time now) {
  if (grant == grant_) return;
  // A grant that replaces another does not begin a turn.
  opens_ = grant_ == 0;
  grant_ = grant;
  granted_at_ = now;
}

void Activity::opened(Time now) {
  if (grant_ != 0 && open_since_ == Time{0}) open_since_ = now;
  if (!opens_ || grant_ == 0 || page_ == nullptr) return;
  opens_ = false;
  switching_ns_ += static_cast<std::uint64_t>((now - granted_at_).count());
  tell(&protocol::GpuUsage::switch_ns, switching_ns_);
  tell(&protocol::GpuUsage::switches, ++switches_);
}

void Activity::closed(Time now) {
  spell_ = 0;
  sampled_at_ = Time{0};
  if (open_since_ != Time{0}) open_ += now - open_since_;
  open_since_ = Time{0};
}

void Activity::count_calls(Time now) {
  if (page_ == nullptr) return;
  const Time open = open_ + (open_since_ != Time{0} ? now - open_since_ : Time{0});
  tell(&protocol::GpuUsage::calls, gate_.traffic(devices_).calls);
  tell(&protocol::GpuUsage::open_ns, static_cast<std::uint64_t>(open.count()));
  tell(&protocol::GpuUsage::counted_ns, static_cast<std::uint64_t>(now.count()));
}

void Activity::look(std::uint32_t watch, bool accounts, bool holds, Time now) {
  look_at_ = Time::max();
  if ((watch == 0 && !accounts) || !holds || page_ == nullptr) return;
  if (watch != 0) {
    count_calls(now);
    look_at_ = now + kCount;
  }
  const bool asked = (watch & protocol::kWatchSamples) != 0;
  if (!asked && !accounts) return;
  if (asked) between_ = kBetweenSamples;
  if (now >= sample_at_) {
    const Found found = sample();
    if (asked && found != Found::kNothing) tell_sample(found == Found::kBusy);
    if (accounts && found != Found::kNothing && sampled_at_ != Time{0}) {
      account::sampled(found == Found::kBusy, now - sampled_at_);
      sampled_ += now - sampled_at_;
    }
    sampled_at_ = now;
    if (!asked) {
      between_ = found == Found::kBusy ? std::min(sampled_ / kEnoughSamples, kBetweenBusySamples)
                                       : std::min(between_ * 2, kBetweenIdleSamples);
      between_ = std::max(between_, kBetweenSamples);
    }
    sample_at_ = now + between_ / 2 + between_ * static_cast<int>(jitter_() % 1024) / 1024;
  }
  look_at_ = std::min(look_at_, sample_at_);
}

// Makes no mark if no call came since a mark that has been passed: then the GPU is idle.
Activity::Found Activity::sample() {
  const std::uint64_t calls = gate_.traffic(devices_).calls;
  if (calls != calls_marked_) {
    if (contexts_.mark(devices_) != gate::Contexts::Mark::kMarked) return Found::kNothing;
    calls_marked_ = calls;
    std::this_thread::sleep_for(kPassedByThen);
  }
  const gate::Contexts::Progress progress = contexts_.progress(devices_);
  if (!progress.looked) return Found::kNothing;
  return progress.done ? Found::kIdle : Found::kBusy;
}

void Activity::tell_sample(bool busy) {
  spell_ = busy ? spell_ + 1 : 0;
  if (spell_ >= kSpell) tell(&protocol::GpuUsage::spell_samples, in_spells_ += spell_ == kSpell ? kSpell : 1);
  if (busy) tell(&protocol::GpuUsage::busy_samples, ++busy_);
  tell(&protocol::GpuUsage::samples, ++samples_);
}

}  // namespace rota::turn
