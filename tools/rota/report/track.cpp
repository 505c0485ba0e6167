// See track.h.
#include "tools/rota/report/track.h"

#include <algorithm>

namespace rota::report {
namespace {

// Exact if the difference is small. Times come from files, so it must not overflow either.
double between(Realtime begin, Realtime end) {
  return static_cast<double>(
      static_cast<std::int64_t>(static_cast<std::uint64_t>(end) - static_cast<std::uint64_t>(begin)));
}

// The time that each process waited and worked, spread evenly over each step of its timeline.
void add_shares(const ProcessReport& process, Track& track) {
  const Timeline& timeline = process.account.timeline;
  const auto part_ns = static_cast<double>(track.part_ns);
  const auto step_ns = static_cast<double>(timeline.step_ns);
  const auto parts = static_cast<double>(track.bytes.size());
  const double offset = between(track.begin_ns, process.account.began_ns);
  for (std::size_t s = 0; s < timeline.steps.size(); ++s) {
    const StepRecord& step = timeline.steps[s];
    const double from = std::clamp((offset + step_ns * static_cast<double>(s)) / part_ns, 0.0, parts);
    const double to = std::clamp((offset + step_ns * static_cast<double>(s + 1)) / part_ns, 0.0, parts);
    for (auto i = static_cast<std::size_t>(from); i < track.bytes.size() && static_cast<double>(i) < to; ++i) {
      const double share = std::min(to, static_cast<double>(i + 1)) - std::max(from, static_cast<double>(i));
      const double microseconds_to_parts = share / step_ns * 1e3;
      track.waiting[i] += step.waited_us * microseconds_to_parts;
      track.busy[i] += step.busy_us * microseconds_to_parts;
    }
  }
}

void add_memory(const std::vector<MemoryChange>& changes, Track& track) {
  std::uint64_t now = 0;
  std::size_t next = 0;
  for (std::size_t i = 0; i < track.bytes.size(); ++i) {
    const double begin = static_cast<double>(track.part_ns) * static_cast<double>(i);
    const double end = begin + static_cast<double>(track.part_ns);
    for (; next < changes.size() && between(track.begin_ns, changes[next].time) <= begin; ++next) {
      now += static_cast<std::uint64_t>(changes[next].bytes);
    }
    std::uint64_t most = now;
    for (; next < changes.size() && between(track.begin_ns, changes[next].time) < end; ++next) {
      now += static_cast<std::uint64_t>(changes[next].bytes);
      // A decrease comes before an increase at the same time.
      const bool settled = next + 1 == changes.size() || changes[next + 1].time != changes[next].time;
      if (settled && static_cast<std::int64_t>(now) > 0) most = std::max(most, now);
    }
    track.bytes[i] = static_cast<std::int64_t>(most) > 0 ? most : 0;
  }
}

}  // namespace

std::pair<Realtime, Realtime> span_of(const ProcessReport& process) {
  const ProcessAccount& account = process.account;
  Realtime end = account.ended_ns;
  if (process.end && process.end->time_ns != 0) end = process.end->time_ns;
  if (end == 0) {
    const std::uint64_t lived = account.timeline.step_ns * account.timeline.steps.size();
    end = static_cast<Realtime>(static_cast<std::uint64_t>(account.began_ns) + lived);
  }
  return {account.began_ns, std::max(account.began_ns, end)};
}

std::pair<Realtime, Realtime> span_of(const Model& model) {
  Realtime begin = model.job.begin_ns;
  Realtime end = model.job.end_ns;
  const auto add = [&](Realtime from, Realtime to) {
    if (from != 0) begin = begin == 0 ? from : std::min(begin, from);
    end = std::max({end, from, to});
  };
  for (const ProcessReport& process : model.processes) add(span_of(process).first, span_of(process).second);
  for (const TestReport& test : model.tests) add(test.record.begin_ns, test.record.end_ns);
  return {begin, std::max(begin, end)};
}

Track track_of(const std::vector<const ProcessReport*>& processes, Realtime begin_ns, Realtime end_ns,
               std::size_t parts) {
  Track track{.begin_ns = begin_ns, .part_ns = 0, .bytes = {}, .waiting = {}, .busy = {}};
  if (!(between(begin_ns, end_ns) >= 1) || between(begin_ns, end_ns) > 9e18) return track;
  track.part_ns = static_cast<std::uint64_t>(between(begin_ns, end_ns)) / parts + 1;
  track.bytes.resize(parts);
  track.waiting.resize(parts);
  track.busy.resize(parts);
  for (const ProcessReport* process : processes) add_shares(*process, track);
  add_memory(memory_changes(processes, Bound::kMost), track);
  return track;
}

}  // namespace rota::report
