// See gpu_time.h.
#include "tools/rota/report/gpu_time.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace rota::report {
namespace {

// Times are seconds since a moment near them. They come from files, so a difference must not overflow.
double seconds_between(Realtime begin, Realtime end) {
  return (static_cast<double>(end) - static_cast<double>(begin)) / 1e9;
}

double step_seconds(const ProcessReport& process) {
  return static_cast<double>(process.account.timeline.step_ns) / 1e9;
}

// The part of a step in which the process was busy.
double busy_part(const ProcessReport& process, const StepRecord& step) {
  return std::min(1.0, step.busy_us / 1e6 / step_seconds(process));
}

// The time that each busy process of one GPU has had it, as a sum over time: it grows by 1 s per second while only one
// is busy, and by half of that while two are.
class Slices {
 public:
  void add(double begin, double end, double busy) {
    changes_.emplace_back(begin, busy);
    changes_.emplace_back(end, -busy);
  }

  void sum_up() {
    std::ranges::sort(changes_);
    double busy = 0;
    double sum = 0;
    double since = 0;
    for (const auto& [time, change] : changes_) {
      if (!times_.empty()) sum += (time - since) / std::max(1.0, busy);
      busy += change;
      since = time;
      if (!times_.empty() && times_.back() == time) {
        sums_.back() = sum;
      } else {
        times_.push_back(time);
        sums_.push_back(sum);
      }
    }
  }

  // Between two times that were added.
  double between(double begin, double end) const { return at(end) - at(begin); }

 private:
  double at(double time) const {
    const auto place = std::ranges::lower_bound(times_, time);
    return place == times_.end() ? sums_.back() : sums_[static_cast<std::size_t>(place - times_.begin())];
  }

  std::vector<std::pair<double, double>> changes_;  // at a time, of the sum of busy parts
  std::vector<double> times_;
  std::vector<double> sums_;
};

}  // namespace

void divide_gpu_time(std::vector<ProcessReport>& processes) {
  std::map<std::string, Slices> gpus;
  const Realtime zero = processes.empty() ? 0 : processes.front().account.began_ns;
  const auto for_each_busy_step = [&](ProcessReport& process, const auto& visit) {
    const double began = seconds_between(zero, process.account.began_ns);
    std::vector<StepRecord>& steps = process.account.timeline.steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const double begin = began + step_seconds(process) * static_cast<double>(i);
      if (steps[i].busy_us != 0) visit(i, begin, begin + step_seconds(process));
    }
  };
  for (ProcessReport& process : processes) {
    for (const GpuRecord& gpu : process.account.gpus) {
      Slices& slices = gpus[gpu.uuid];
      for_each_busy_step(process, [&](std::size_t step, double begin, double end) {
        slices.add(begin, end, busy_part(process, process.account.timeline.steps[step]));
      });
    }
  }
  for (auto& [uuid, slices] : gpus) slices.sum_up();
  for (ProcessReport& process : processes) {
    std::vector<StepRecord>& steps = process.account.timeline.steps;
    process.gpu_shares.assign(steps.size(), 1.0);
    double all = 0;
    double own = 0;
    for_each_busy_step(process, [&](std::size_t step, double begin, double end) {
      double most = process.account.gpus.empty() ? end - begin : 0;
      for (const GpuRecord& gpu : process.account.gpus) most = std::max(most, gpus[gpu.uuid].between(begin, end));
      const double share = end > begin ? std::clamp(most / (end - begin), 0.0, 1.0) : 1.0;
      process.gpu_shares[step] = share;
      all += steps[step].busy_us;
      own += steps[step].busy_us * share;
      steps[step].busy_us = static_cast<std::uint32_t>(std::lround(steps[step].busy_us * share));
    });
    if (all > 0) {
      process.use.gpu_ns = static_cast<std::uint64_t>(static_cast<double>(process.use.gpu_ns) * (own / all));
    }
  }
}

double gpu_share(const ProcessReport& process, Realtime begin, Realtime end) {
  const std::vector<StepRecord>& steps = process.account.timeline.steps;
  const double length = step_seconds(process);
  const double from = seconds_between(process.account.began_ns, begin);
  const double to = seconds_between(process.account.began_ns, end);
  double all = 0;
  double own = 0;
  for (std::size_t i = 0; i < steps.size() && i < process.gpu_shares.size(); ++i) {
    const double step = length * static_cast<double>(i);
    const double overlap = std::min(to, step + length) - std::max(from, step);
    const double share = process.gpu_shares[i];
    if (overlap <= 0 || share <= 0) continue;
    own += overlap * steps[i].busy_us;
    all += overlap * steps[i].busy_us / share;
  }
  return all > 0 ? own / all : 1.0;
}

}  // namespace rota::report
