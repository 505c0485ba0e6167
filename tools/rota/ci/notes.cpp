#include "tools/rota/ci/notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
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
  return room ? "memory that other tests need" : "";
}

// How much of its time the test waited. Threads may wait at the same time.
std::uint64_t waited_of(const TestReport& test) {
  const std::uint64_t duration = test.duration_ns();
  return duration != 0 ? std::min(test.use.waited_ns, duration) : test.use.waited_ns;
}

// By ctest's TIMEOUT, or as pytest-timeout says it: "Timeout (>1.0s) from pytest-timeout", "Timeout >1.0s".
bool timed_out(const TestReport& test) {
  const auto says = [&](const char* text) { return test.record.message.find(text) != std::string::npos; };
  return test.record.outcome == "timeout" || (test.record.runner == "pytest" && test.record.outcome == "failed" &&
                                              (says("Timeout (>") || says("Timeout >")));
}

// Whether the test timed out because the runner's clock also ran while it waited.
bool timed_out_waiting(const Model& model, const TestReport& test) {
  if (!timed_out(test)) return false;
  const std::uint64_t waited = waited_of(test);
  return (waited > 0 && waited >= test.duration_ns() / 10) || !ended_waiting_for(model, test).empty();
}

std::string wait_of(const Model& model, const TestReport& test) {
  if (timed_out_waiting(model, test)) return {};  // timed_out_tests() has it
  const std::uint64_t duration = test.duration_ns();
  const std::uint64_t waited = waited_of(test);
  const std::string name = report::printable(test.title());
  if (const std::string what = ended_waiting_for(model, test); !what.empty()) {
    return fmt::format("{} was ended while it waited for {}", name, what);
  }
  if (waited < kWorthALine || duration == 0 || waited < duration / 2) return {};
  return fmt::format("{} waited {} of its {} for the GPU", name, seconds(waited), seconds(duration));
}

// A test's begin and end are known to a few hundredths of a second: of two successive tests, the first may seem to end
// after the second has begun.
constexpr report::Realtime kOverlap = 150'000'000;

// The most tests that ran at once.
int most_at_once(const Model& model) {
  std::vector<std::pair<report::Realtime, int>> changes;
  for (const TestReport& test : model.tests) {
    if (test.duration_ns() == 0) continue;
    changes.emplace_back(test.record.begin_ns, 1);
    const auto cut = std::min(kOverlap, static_cast<report::Realtime>(test.duration_ns() / 2));
    changes.emplace_back(test.record.end_ns - cut, -1);
  }
  std::ranges::sort(changes);  // at the same moment ends come first
  int now = 0;
  int most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return most;
}

// What was gained by running tests at once.
struct Worth {
  int most = 0;        // tests at once
  double at_once = 0;  // of them that did not wait, on average
  int enough() const { return std::max(1, static_cast<int>(std::ceil(at_once))); }
};

std::optional<Worth> worth_of(const Model& model) {
  Worth worth{.most = most_at_once(model)};
  report::Realtime begin = 0;
  report::Realtime end = 0;
  double working = 0;
  for (const TestReport& test : model.tests) {
    const std::uint64_t duration = test.duration_ns();
    if (duration == 0) continue;
    if (begin == 0 || test.record.begin_ns < begin) begin = test.record.begin_ns;
    end = std::max(end, test.record.end_ns);
    working += static_cast<double>(duration - waited_of(test));
  }
  if (worth.most < 2 || end - begin < static_cast<report::Realtime>(kWorthALine)) return std::nullopt;
  worth.at_once = working / static_cast<double>(end - begin);
  return worth;
}

// All of them in one line, with what to do.
std::string timed_out_tests(const Model& model, const std::optional<Worth>& worth) {
  constexpr std::size_t kMostNames = 10;
  std::string names;
  std::size_t count = 0;
  for (const TestReport& test : model.tests) {
    if (!timed_out_waiting(model, test) || ++count > kMostNames) continue;
    names += fmt::format("{}{} (waited {} of its {})", names.empty() ? "" : ", ", report::printable(test.title()),
                         seconds(waited_of(test)), seconds(test.duration_ns()));
  }
  if (count == 0) return {};
  if (count > kMostNames) names += fmt::format(" and {} more", count - kMostNames);
  const std::string fewer = worth && worth->enough() < worth->most ? fmt::format(", such as {}", worth->enough()) : "";
  return fmt::format(
      "{} ended by {} own time-out, in which waiting for the GPU counts: {}. Give longer time-outs (ctest: TIMEOUT or "
      "--timeout; pytest: --timeout), or run fewer at once{}",
      count == 1 ? "1 test was" : fmt::format("{} tests were", count), count == 1 ? "its" : "their", names, fewer);
}

std::string worth_text(const Worth& worth) {
  if (worth.enough() >= worth.most) {
    return fmt::format("up to {} tests ran at once, and that was worth it: {:.1f} of them did not wait, on average",
                       worth.most, worth.at_once);
  }
  return fmt::format("up to {} tests ran at once, of which {:.1f} did not wait, on average: -j{} would do as well",
                     worth.most, worth.at_once, worth.enough());
}

}  // namespace

std::vector<std::string> rig_notes(const Model& model) {
  const std::optional<Worth> worth = worth_of(model);
  std::vector<std::string> notes;
  if (std::string line = timed_out_tests(model, worth); !line.empty()) notes.push_back(std::move(line));
  for (const TestReport& test : model.tests) {
    if (std::string line = wait_of(model, test); !line.empty()) notes.push_back(std::move(line));
  }
  if (worth) notes.push_back(worth_text(*worth));
  return notes;
}

}  // namespace rota::ci
