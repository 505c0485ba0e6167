#include "tools/rota/ci/notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/rota/report/format.h"

namespace rota::ci {

namespace {

using report::Model;
using report::TestReport;

// Shorter waits are not worth a line.
constexpr std::uint64_t kWorthALine = 1'000'000'000;

std::string seconds(std::uint64_t ns) {
  return fmt::format("{:.1f} s", static_cast<double>(ns) / 1e9);
}

// What the test waited for when it was ended; "": it did not wait.
std::string ended_waiting_for(const Model& model, const TestReport& test) {
  bool room = false;
  for (const std::size_t index : test.processes) {
    const report::ProcessAccount& process = model.processes[index].account;
    if (process.ending != report::Ending::kKilled) continue;
    for (const report::ThreadRecord& thread : process.inside) {
      if (thread.at_gate && !waits_for_room(thread)) return "its turn on the GPU";
      room |= thread.at_gate;
    }
  }
  return room ? "room beside the other tests" : "";
}

std::string wait_of(const Model& model, const TestReport& test) {
  const std::uint64_t duration = test.duration_ns();
  // Threads may wait at the same time.
  const std::uint64_t waited = duration != 0 ? std::min(test.use.waited_ns, duration) : test.use.waited_ns;
  const std::string name = report::printable(test.title());
  if (const std::string what = ended_waiting_for(model, test); !what.empty()) {
    return fmt::format("{} was ended while it waited for {}", name, what);
  }
  if (waited < kWorthALine || duration == 0 || waited < duration / 2) return {};
  return fmt::format("{} waited {} of its {} for the GPU{}", name, seconds(waited), seconds(duration),
                     test.record.outcome == "timeout" ? ", and was ended by its time-out" : "");
}

// How many tests ran at once at most.
int most_at_once(const Model& model) {
  std::vector<std::pair<report::Realtime, int>> changes;
  for (const TestReport& test : model.tests) {
    if (test.duration_ns() == 0) continue;
    changes.emplace_back(test.record.begin_ns, 1);
    changes.emplace_back(test.record.end_ns, -1);
  }
  std::ranges::sort(changes);  // at the same moment ends come first
  int now = 0;
  int most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return most;
}

std::string worth(const Model& model) {
  const int most = most_at_once(model);
  report::Realtime begin = 0;
  report::Realtime end = 0;
  double working = 0;
  for (const TestReport& test : model.tests) {
    const std::uint64_t duration = test.duration_ns();
    if (duration == 0) continue;
    if (begin == 0 || test.record.begin_ns < begin) begin = test.record.begin_ns;
    end = std::max(end, test.record.end_ns);
    working += static_cast<double>(duration - std::min(test.use.waited_ns, duration));
  }
  if (most < 2 || end - begin < static_cast<report::Realtime>(kWorthALine)) return {};
  const double at_once = working / static_cast<double>(end - begin);
  const int enough = std::max(1, static_cast<int>(std::ceil(at_once)));
  if (enough >= most) {
    return fmt::format("up to {} tests ran at once, and that was worth it: {:.1f} of them did not wait, on average",
                       most, at_once);
  }
  return fmt::format("up to {} tests ran at once, of which {:.1f} did not wait, on average: -j{} would do as well",
                     most, at_once, enough);
}

}  // namespace

std::vector<std::string> rig_notes(const Model& model) {
  std::vector<std::string> notes;
  for (const TestReport& test : model.tests) {
    if (std::string line = wait_of(model, test); !line.empty()) notes.push_back(std::move(line));
  }
  if (std::string line = worth(model); !line.empty()) notes.push_back(std::move(line));
  return notes;
}

}  // namespace rota::ci
