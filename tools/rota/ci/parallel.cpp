#include "tools/rota/ci/parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>

#include "tools/rota/ci/ctest.h"
#include "tools/rota/report/format.h"

namespace rota::ci {
namespace {

// Of a time-out, which tests may be expected to take.
constexpr double kUsed = 0.9;

enum class Runner { kCtest, kPytest };

std::optional<Runner> runner_of(const std::vector<std::string>& command) {
  if (command.empty()) return std::nullopt;
  const std::string_view program = report::file_name(command[0]);
  if (program == "ctest") return Runner::kCtest;
  if (program == "pytest" || program == "py.test") return Runner::kPytest;
  const bool module = program.starts_with("python") && command.size() > 2 && command[1] == "-m";
  return module && command[2] == "pytest" ? std::optional(Runner::kPytest) : std::nullopt;
}

// An option with a value. `brief` may have it without a space, as -j8.
struct OptionNames {
  std::string_view brief;
  std::string_view full;
};

OptionNames jobs_option(Runner runner) {
  return runner == Runner::kCtest ? OptionNames{"-j", "--parallel"} : OptionNames{"-n", "--numprocesses"};
}

// Where the value is: the argument, and where in it the value begins.
struct Place {
  std::size_t argument;
  std::size_t begin;
};

std::optional<Place> place_of(const std::vector<std::string>& words, const OptionNames& names) {
  std::optional<Place> found;  // the last one counts
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const bool next = i + 1 < words.size();
    if ((word == names.brief || word == names.full) && next) {
      found = Place{i + 1, 0};
    } else if (!names.brief.empty() && word.starts_with(names.brief) && word.size() > names.brief.size()) {
      found = Place{i, names.brief.size()};
    } else if (word.starts_with(names.full) && word.substr(names.full.size()).starts_with('=')) {
      found = Place{i, names.full.size() + 1};
    }
  }
  return found;
}

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number <= 0) return std::nullopt;
  return number;
}

std::string_view value_at(const std::vector<std::string>& words, const Place& place) {
  return std::string_view(words[place.argument]).substr(place.begin);
}

std::vector<std::string> words_of(const char* text) {
  std::istringstream stream(text == nullptr ? "" : text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::string_view text_of(const char* text) {
  return text == nullptr ? std::string_view() : text;
}

TimedTest timed(const std::string& name, const report::BaselineEntry& entry, double timeout) {
  const std::uint64_t own = entry.time_ns - std::min(entry.use.waited_ns, entry.time_ns);
  return {.name = name,
          .time = static_cast<double>(own) / 1e9,
          .gpu = static_cast<double>(std::min(entry.use.gpu_ns, own)) / 1e9,
          .timeout = timeout};
}

std::vector<TimedTest> timed(const AskedCtest& asked, const report::Baseline& baseline) {
  std::vector<TimedTest> tests;
  for (const ListedTest& listed : asked.listed) {
    const auto known = baseline.find(listed.name);
    if (known == baseline.end() || listed.disabled) continue;
    tests.push_back(timed(listed.name, known->second, listed.timeout_s > 0 ? listed.timeout_s : asked.timeout_s));
  }
  return tests;
}

// All that the baseline has of pytest's: which of them the command selects is not known.
std::vector<TimedTest> timed(const report::Baseline& baseline, double timeout) {
  std::vector<TimedTest> tests;
  for (const auto& [name, entry] : baseline) {
    if (name.find("::") != std::string::npos) tests.push_back(timed(name, entry, timeout));
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

std::optional<unsigned> jobs_of(const std::vector<std::string>& command, const Variables& variables) {
  const auto runner = runner_of(command);
  if (!runner) return std::nullopt;
  const OptionNames names = jobs_option(*runner);
  if (const auto place = place_of(command, names)) return number_in<unsigned>(value_at(command, *place));
  if (*runner == Runner::kCtest) {
    // Then ctest chooses a number, whatever the variable says.
    if (!command.empty() && (command.back() == names.brief || command.back() == names.full)) return std::nullopt;
    return number_in<unsigned>(text_of(variables("CTEST_PARALLEL_LEVEL")));
  }
  const std::vector<std::string> added = words_of(variables("PYTEST_ADDOPTS"));
  const auto place = place_of(added, names);
  return place ? number_in<unsigned>(value_at(added, *place)) : std::nullopt;
}

Run with_jobs(std::vector<std::string> command, const Variables& variables, unsigned jobs) {
  const auto runner = runner_of(command);
  if (!runner || !jobs_of(command, variables)) return {.command = std::move(command)};
  const std::string number = std::to_string(jobs);
  if (const auto place = place_of(command, jobs_option(*runner))) {
    command[place->argument].replace(place->begin, std::string::npos, number);
    return {.command = std::move(command)};
  }
  if (*runner == Runner::kCtest) return {std::move(command), {{"CTEST_PARALLEL_LEVEL", number}}};
  // The last one counts.
  return {std::move(command), {{"PYTEST_ADDOPTS", fmt::format("{} -n {}", variables("PYTEST_ADDOPTS"), number)}}};
}

std::optional<double> pytest_timeout(const std::vector<std::string>& command, const Variables& variables) {
  if (runner_of(command) != Runner::kPytest) return std::nullopt;
  constexpr OptionNames kNames{"", "--timeout"};
  if (const auto place = place_of(command, kNames)) return number_in<double>(value_at(command, *place));
  const std::vector<std::string> added = words_of(variables("PYTEST_ADDOPTS"));
  if (const auto place = place_of(added, kNames)) return number_in<double>(value_at(added, *place));
  return number_in<double>(text_of(variables("PYTEST_TIMEOUT")));
}

FittedCommand fit_to_timeouts(const std::vector<std::string>& command, const Variables& variables,
                              const report::Baseline& baseline, unsigned gpus) {
  FittedCommand fitted{.run = {.command = command}, .note = {}};
  const std::optional<unsigned> jobs = jobs_of(command, variables);
  const bool knows = std::ranges::any_of(baseline, [](const auto& entry) { return entry.second.use.gpu_ns != 0; });
  if (!jobs || *jobs < 2 || !knows) return fitted;
  const bool ctest = runner_of(command) == Runner::kCtest;
  std::vector<TimedTest> tests;
  if (ctest) {
    std::error_code error;
    const std::string here = std::filesystem::current_path(error);
    report::PersonRecord runner;
    runner.command = command;
    runner.folder = here;
    const auto asked = ask_ctest({.runner = std::move(runner), .child_folder = here, .last = false}, 0);
    if (!asked) return fitted;  // it is ctest's to say
    tests = timed(*asked, baseline);
  } else if (const auto timeout = pytest_timeout(command, variables)) {
    tests = timed(baseline, *timeout);
  }
  const auto most = most_at_once(tests, gpus);
  if (!most || most->most >= *jobs) return fitted;
  fitted.run = with_jobs(command, variables, most->most);
  fitted.note = fmt::format(
      "{} starts {} test{} at once and not {}: {} has a time-out of {:.3g} s, takes {:.3g} s, {:.3g} s of that on the "
      "GPU, and waiting for others counts. A longer {} allows more",
      ctest ? "ctest" : "pytest", most->most, most->most == 1 ? "" : "s", *jobs, report::printable(most->bound.name),
      most->bound.timeout, most->bound.time, most->bound.gpu, ctest ? "TIMEOUT" : "--timeout");
  return fitted;
}

}  // namespace rota::ci
