#include "tools/rota/ci/parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <utility>

#include "tools/rota/ci/ctest.h"
#include "tools/rota/report/format.h"

namespace rota::ci {
namespace {

// Of a time-out, which tests may be expected to take.
constexpr double kUsed = 0.9;

// Where the command's number is: the argument, and where in it the number begins.
struct Place {
  std::size_t argument;
  std::size_t begin;
};

std::optional<Place> place_of_jobs(const std::vector<std::string>& command) {
  if (command.empty() || report::file_name(command[0]) != "ctest") return std::nullopt;
  std::optional<Place> found;  // the last one counts
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string& argument = command[i];
    const bool next = i + 1 < command.size();
    if ((argument == "-j" || argument == "--parallel") && next) {
      found = Place{i + 1, 0};
    } else if (argument.starts_with("-j") && argument.size() > 2) {
      found = Place{i, 2};
    } else if (constexpr std::string_view kLong = "--parallel="; argument.starts_with(kLong)) {
      found = Place{i, kLong.size()};
    }
  }
  return found;
}

std::optional<unsigned> number_at(const std::vector<std::string>& command, const Place& place) {
  const std::string_view text = std::string_view(command[place.argument]).substr(place.begin);
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number == 0) return std::nullopt;
  return number;
}

std::vector<TimedTest> timed(const AskedCtest& asked, const report::Baseline& baseline) {
  std::vector<TimedTest> tests;
  for (const ListedTest& listed : asked.listed) {
    const auto known = baseline.find(listed.name);
    if (known == baseline.end() || listed.disabled) continue;
    const report::BaselineEntry& entry = known->second;
    const std::uint64_t own = entry.time_ns - std::min(entry.use.waited_ns, entry.time_ns);
    tests.push_back({.name = listed.name,
                     .time = static_cast<double>(own) / 1e9,
                     .gpu = static_cast<double>(std::min(entry.use.gpu_ns, own)) / 1e9,
                     .timeout = listed.timeout_s > 0 ? listed.timeout_s : asked.timeout_s});
  }
  return tests;
}

}  // namespace

std::optional<Parallel> most_at_once(const std::vector<TimedTest>& tests, unsigned gpus) {
  std::optional<Parallel> least;
  for (const TimedTest& test : tests) {
    // One that its time-out ends even alone bounds nothing.
    const double left = test.timeout * kUsed - test.time;
    if (test.gpu <= 0 || left < 0) continue;
    constexpr double kMany = 1e6;
    const double others = std::floor(std::min(left / test.gpu, kMany) * gpus);
    const auto most = static_cast<unsigned>(others) + 1;
    if (!least || most < least->most) least = Parallel{most, test};
  }
  return least;
}

std::optional<unsigned> jobs_of(const std::vector<std::string>& command) {
  const auto place = place_of_jobs(command);
  return place ? number_at(command, *place) : std::nullopt;
}

std::vector<std::string> with_jobs(std::vector<std::string> command, unsigned jobs) {
  if (const auto place = place_of_jobs(command)) {
    command[place->argument].replace(place->begin, std::string::npos, fmt::format("{}", jobs));
  }
  return command;
}

FittedCommand fit_to_timeouts(const std::vector<std::string>& command, const report::Baseline& baseline,
                              unsigned gpus) {
  FittedCommand fitted{.command = command, .note = {}};
  const std::optional<unsigned> jobs = jobs_of(command);
  const bool knows = std::ranges::any_of(baseline, [](const auto& entry) { return entry.second.use.gpu_ns != 0; });
  if (!jobs || *jobs < 2 || !knows) return fitted;
  std::error_code error;
  const std::string here = std::filesystem::current_path(error);
  report::PersonRecord runner;
  runner.command = command;
  runner.folder = here;
  const auto asked = ask_ctest({.runner = std::move(runner), .child_folder = here, .last = false}, 0);
  if (!asked) return fitted;  // it is ctest's to say
  const auto most = most_at_once(timed(*asked, baseline), gpus);
  if (!most || most->most >= *jobs) return fitted;
  fitted.command = with_jobs(command, most->most);
  fitted.note = fmt::format(
      "ctest starts {} test{} at once and not {}: {} has a time-out of {:.3g} s, takes {:.3g} s, {:.3g} s of that on "
      "the "
      "GPU, and waiting for others counts. A longer TIMEOUT allows more",
      most->most, most->most == 1 ? "" : "s", *jobs, report::printable(most->bound.name), most->bound.timeout,
      most->bound.time, most->bound.gpu);
  return fitted;
}

}  // namespace rota::ci
