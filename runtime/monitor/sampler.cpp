#include "runtime/monitor/sampler.h"

#include <bit>
#include <thread>
#include <utility>

#include "runtime/account/account.h"

namespace rota::monitor {

using namespace std::chrono_literals;

namespace {

// An idle context passes a mark in 0.5 to 4.9 us (measured): one that has not passed it by then is busy.
constexpr turn::Time kPassedByThen = 25us;

}  // namespace

void Sampler::connected(protocol::UsagePage* page) {
  page_ = page;
  activity_.connected(page != nullptr);
  if (page != nullptr) gpus_ = 0;
}

void Sampler::serve(turn::GpuMask gpus, gate::Devices devices) {
  devices_ = devices;
  if (std::exchange(gpus_, gpus) == gpus) return;
  tell_samples();
  tell_switches();
}

void Sampler::tell(std::atomic<std::uint64_t> protocol::GpuUsage::* what, std::uint64_t value) {
  if (page_ == nullptr) return;
  for (turn::GpuMask rest = gpus_; rest != 0; rest &= rest - 1)
    (page_->gpus[std::countr_zero(rest)].*what).store(value);
}

void Sampler::tell_samples() {
  const turn::Activity::Sums& sums = activity_.sums();
  tell(&protocol::GpuUsage::spell_samples, sums.spell_samples);
  tell(&protocol::GpuUsage::busy_samples, sums.busy_samples);
  tell(&protocol::GpuUsage::samples, sums.samples);
}

void Sampler::tell_switches() {
  tell(&protocol::GpuUsage::switch_ns, activity_.sums().switch_ns);
  tell(&protocol::GpuUsage::switches, activity_.sums().switches);
}

void Sampler::opened(turn::Time now) {
  if (activity_.opened(now)) tell_switches();
}

void Sampler::count_calls(turn::Time now) {
  if (page_ == nullptr) return;
  tell(&protocol::GpuUsage::calls, gate_.traffic(devices_).calls);
  tell(&protocol::GpuUsage::open_ns, static_cast<std::uint64_t>(activity_.open(now).count()));
  tell(&protocol::GpuUsage::counted_ns, static_cast<std::uint64_t>(now.count()));
}

void Sampler::look(std::uint32_t watch, bool accounts, bool holds, turn::Time now) {
  const turn::Activity::Wants wants{
      .counts = watch != 0, .samples = (watch & protocol::kWatchSamples) != 0, .accounts = accounts, .holds = holds};
  const turn::Activity::Todo todo = activity_.look(wants, now);
  if (todo.count) count_calls(now);
  if (!todo.sample) return;
  const turn::Activity::Found found = sample();
  const turn::Time stands_for = activity_.sampled(wants, found, now);
  if (wants.samples && found != turn::Activity::Found::kNothing) tell_samples();
  if (stands_for != turn::Time{0}) account::sampled(found == turn::Activity::Found::kBusy, stands_for);
}

// Makes no new mark if no call has come since the last one: the GPU is idle once it has passed that.
turn::Activity::Found Sampler::sample() {
  const std::uint64_t calls = gate_.traffic(devices_).calls;
  if (calls != calls_marked_) {
    if (contexts_.mark(devices_) != driver::Contexts::Mark::kMarked) return turn::Activity::Found::kNothing;
    calls_marked_ = calls;
    std::this_thread::sleep_for(kPassedByThen);
  }
  const driver::Contexts::Progress progress = contexts_.progress(devices_);
  if (!progress.looked) return turn::Activity::Found::kNothing;
  return progress.done ? turn::Activity::Found::kIdle : turn::Activity::Found::kBusy;
}

}  // namespace rota::monitor
