#include "tools/rota/ci/parallel.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "tools/rota/ci/ctest.h"
#include "tools/rota/ci/pytest_files.h"
#include "tools/rota/ci/selected.h"
#include "tools/rota/report/format.h"

namespace rota::ci {
namespace {

// The part of a time-out that tests are planned to use.
constexpr double kUsed = 0.9;
// How make is given ctest's words in CMake's target "test".
constexpr std::string_view kArguments = "ARGS=";
// How many workers xdist starts for "auto" and "logical".
constexpr const char* kAutomatic = "PYTEST_XDIST_AUTO_NUM_WORKERS";

enum class Runner { kCtest, kPytest };

// How a command starts a runner.
struct Start {
  Runner runner;
  std::size_t options =
      1;  // index of the command's first word that is the runner's own; unused if a build tool starts it
  bool by_build_tool = false;
  std::optional<std::size_t> joined{};  // index of the command's word that has all of ctest's words: make's ARGS=-j8
  std::string folder{};                 // in which a build tool works
};

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

// CMake's target "test", which starts ctest: make test, ninja -C build test, cmake --build build --target test.
std::optional<Start> by_build_tool(std::string_view program, const std::vector<std::string>& command) {
  const bool cmake = program == "cmake" && command.size() > 2 && command[1] == "--build";
  if (!cmake && !is_one_of(program, {"make", "gmake", "ninja"})) return std::nullopt;
  Start start{.runner = Runner::kCtest, .by_build_tool = true};
  if (cmake) start.folder = command[2];
  bool test = false;
  for (std::size_t i = cmake ? 3 : 1; i < command.size(); ++i) {
    const std::string_view word = command[i];
    const std::string_view before = command[i - 1];
    if (!cmake && is_one_of(before, {"-C", "--directory"})) {
      start.folder = word;
    } else if (!cmake && (word.starts_with("-C") || word.starts_with("--directory="))) {
      start.folder = word.substr(word[1] == 'C' ? 2 : word.find('=') + 1);
    } else if (!is_one_of(before, {"-f", "--file"})) {
      test = test || is_one_of(word, {"test", "--target=test"});
      if (word.starts_with(kArguments) && program != "ninja") start.joined = i;
    }
  }
  return test ? std::optional(start) : std::nullopt;
}

std::optional<Start> start_of(const std::vector<std::string>& command) {
  if (command.empty()) return std::nullopt;
  const std::string_view program = report::file_name(command[0]);
  if (program == "ctest") return Start{Runner::kCtest};
  if (program == "pytest" || program == "py.test") return Start{Runner::kPytest};
  if (program.starts_with("python")) {
    std::size_t at = 1;  // behind Python's own options
    while (at < command.size() && command[at].starts_with('-') && command[at] != "-m") ++at;
    const bool pytest = at + 1 < command.size() && command[at] == "-m" && command[at + 1] == "pytest";
    return pytest ? std::optional(Start{.runner = Runner::kPytest, .options = at + 2}) : std::nullopt;
  }
  return by_build_tool(program, command);
}

std::vector<std::string> words_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  return {std::istream_iterator<std::string>(stream), {}};
}

std::string_view text_of(const char* text) {
  return text == nullptr ? std::string_view() : text;
}

// The runner's own words, as far as the command has them.
std::vector<std::string> options_of(const std::vector<std::string>& command, const Start& start) {
  if (start.joined) return words_of(std::string_view(command[*start.joined]).substr(kArguments.size()));
  if (start.by_build_tool) return {};
  return {command.begin() + static_cast<std::ptrdiff_t>(start.options), command.end()};
}

// An option with a value. `brief` may have it without a space, as -j8.
struct OptionNames {
  std::string_view brief;
  std::string_view full;
};

OptionNames jobs_option(Runner runner) {
  return runner == Runner::kCtest ? OptionNames{"-j", "--parallel"} : OptionNames{"-n", "--numprocesses"};
}

// Where the value is: the word, and where in it the value begins.
struct Place {
  std::size_t word;
  std::size_t begin;
};

std::optional<Place> place_of(const std::vector<std::string>& words, const OptionNames& names) {
  std::optional<Place> found;  // the last one counts
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const bool next = i + 1 < words.size();
    if (word == "--") break;  // files
    if (word.empty()) continue;
    if ((word == names.brief || word == names.full) && next) {
      found = Place{++i, 0};
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
  return std::string_view(words[place.word]).substr(place.begin);
}

std::optional<unsigned> number_of(const std::vector<std::string>& words, const OptionNames& names) {
  const auto place = place_of(words, names);
  return place ? number_in<unsigned>(value_at(words, *place)) : std::nullopt;
}

bool is_automatic(std::string_view workers) {
  return is_one_of(workers, {"auto", "logical"});
}

// How many tests run at once: xdist counts processors, or with psutil cores for "auto".
struct Jobs {
  unsigned least = 0;
  unsigned most = 0;
};

unsigned cores() {
  std::set<std::string> all;  // each by the processors that share it
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/cpu", error)) {
    std::string processors;
    if (std::ifstream(entry.path() / "topology/thread_siblings_list") >> processors) all.insert(processors);
  }
  return static_cast<unsigned>(all.size());
}

std::string this_folder() {
  std::error_code error;
  return std::filesystem::current_path(error);
}

// Of PYTEST_ADDOPTS and the command, in pytest's order.
std::vector<std::string> given_words(const std::vector<std::string>& options, const Variables& variables) {
  std::vector<std::string> words = shell_words(text_of(variables("PYTEST_ADDOPTS")));
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

// The words that contain pytest's value of an option, and its place in them. The command's words take precedence over
// the variable's, and these over the configuration's.
std::pair<std::vector<std::string>, std::optional<Place>> pytest_place(std::vector<std::string> options,
                                                                       const OptionNames& names,
                                                                       const Variables& variables) {
  if (const auto place = place_of(options, names)) return {std::move(options), place};
  std::vector<std::string> added = shell_words(text_of(variables("PYTEST_ADDOPTS")));
  if (const auto place = place_of(added, names)) return {std::move(added), place};
  std::vector<std::string> configured = pytest_config(given_words(options, variables), this_folder()).addopts;
  const auto place = place_of(configured, names);
  return {std::move(configured), place};
}

Jobs automatic_jobs(std::string_view workers, const std::vector<std::string>& options, const Variables& variables) {
  const auto& [words, place] = pytest_place(options, {"", "--maxprocesses"}, variables);
  unsigned bound = std::numeric_limits<unsigned>::max();
  if (place) bound = number_in<unsigned>(value_at(words, *place)).value_or(bound);
  const auto bounded = [&](unsigned number) { return std::min(number, bound); };
  if (const auto said = number_in<unsigned>(text_of(variables(kAutomatic)))) return {bounded(*said), bounded(*said)};
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const auto all = static_cast<unsigned>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  const bool known_allowed = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  unsigned least = known_allowed ? static_cast<unsigned>(CPU_COUNT(&allowed)) : all;
  if (const unsigned known = workers == "auto" ? cores() : 0; known != 0) least = std::min(least, known);
  return {bounded(std::min(least, all)), bounded(all)};
}

std::optional<Jobs> all_jobs(const std::vector<std::string>& command, const Variables& variables) {
  const auto start = start_of(command);
  if (!start) return std::nullopt;
  const OptionNames names = jobs_option(start->runner);
  const std::vector<std::string> options = options_of(command, *start);
  std::optional<unsigned> number;
  if (start->runner == Runner::kPytest) {
    const auto& [words, place] = pytest_place(options, names, variables);
    if (!place) return std::nullopt;
    const std::string_view value = value_at(words, *place);
    if (is_automatic(value)) return automatic_jobs(value, options, variables);
    number = number_in<unsigned>(value);
  } else if (place_of(options, names)) {
    number = number_of(options, names);
  } else if (options.empty() || !is_one_of(options.back(), {names.brief, names.full})) {
    number = number_in<unsigned>(text_of(variables("CTEST_PARALLEL_LEVEL")));
  }  // otherwise ctest chooses a number, whatever the variable says
  return number ? std::optional(Jobs{*number, *number}) : std::nullopt;
}

TimedTest timed(const std::string& name, const report::BaselineEntry& entry, double timeout, const char* given_by) {
  const std::uint64_t own = entry.time_ns - std::min(entry.use.waited_ns, entry.time_ns);
  return {.name = name,
          .time = static_cast<double>(own) / 1e9,
          .gpu = static_cast<double>(std::min(entry.use.gpu_ns, own)) / 1e9,
          .timeout = timeout,
          .given_by = given_by};
}

std::vector<TimedTest> timed(const AskedCtest& asked, const report::Baseline& baseline) {
  std::vector<TimedTest> tests;
  for (const ListedTest& listed : asked.listed) {
    const auto known = baseline.find(listed.name);
    if (known == baseline.end() || listed.disabled) continue;
    tests.push_back(
        timed(listed.name, known->second, listed.timeout_s > 0 ? listed.timeout_s : asked.timeout_s, "TIMEOUT"));
  }
  return tests;
}

// The test files that ids name, each read once.
class MarkedTests {
 public:
  // Ids are relative to pytest's root: where its configuration is, or a folder above `here`.
  MarkedTests(const std::string& root, const std::string& here) {
    if (!root.empty()) roots_.emplace_back(root);
    for (std::filesystem::path folder = here; roots_.empty() || roots_.back() != folder;
         folder = folder.parent_path()) {
      roots_.push_back(folder);
    }
  }

  MarkedTimeout of(const std::string& id) {
    const std::size_t end = id.find("::");
    const std::string file = id.substr(0, end);
    auto known = files_.find(file);
    if (known == files_.end()) known = files_.emplace(file, MarkedTimeouts(source_of(file))).first;
    return known->second.of(std::string_view(id).substr(end + 2));
  }

 private:
  std::string source_of(const std::string& file) const {
    for (const std::filesystem::path& root : roots_) {
      if (auto source = test_source(root / file)) return *std::move(source);
    }
    return {};
  }

  std::vector<std::filesystem::path> roots_;
  std::map<std::string, MarkedTimeouts> files_;
};

struct GivenTimeout {
  double seconds = 0;
  const char* by = "";
};

// What pytest-timeout uses where a test has no mark.
std::optional<GivenTimeout> general_timeout(const std::vector<std::string>& options, const Variables& variables,
                                            const PytestConfig& config) {
  const auto given = [](std::string_view text, const char* by) {
    const auto seconds = number_in<double>(text);
    return seconds && std::isfinite(*seconds) ? std::optional(GivenTimeout{*seconds, by}) : std::nullopt;
  };
  const auto& [words, place] = pytest_place(options, {"", "--timeout"}, variables);
  if (place) return given(value_at(words, *place), "--timeout");
  if (const char* const text = variables("PYTEST_TIMEOUT")) return given(text, "PYTEST_TIMEOUT");
  return config.timeout ? given(*config.timeout, "timeout in pytest's configuration") : std::nullopt;
}

std::vector<TimedTest> timed_pytest(const report::Baseline& baseline, const std::vector<std::string>& options,
                                    const Variables& variables, const PytestConfig& config,
                                    const PytestSelection& selection, const std::string& here) {
  const auto general = general_timeout(options, variables, config);
  MarkedTests marked(config.folder, here);
  std::vector<TimedTest> tests;
  for (const auto& [name, entry] : baseline) {
    if (name.find("::") == std::string::npos || !selection.has(name)) continue;
    const MarkedTimeout mark = marked.of(name);
    if (mark.unreadable || mark.seconds == 0.0) continue;  // not known, or none
    if (mark.seconds) {
      tests.push_back(timed(name, entry, *mark.seconds, "@pytest.mark.timeout"));
    } else if (general) {
      tests.push_back(timed(name, entry, general->seconds, general->by));
    }
  }
  return tests;
}

}  // namespace

std::optional<Parallel> most_at_once(const std::vector<TimedTest>& tests, unsigned gpus) {
  std::optional<Parallel> least;
  for (const TimedTest& test : tests) {
    // A test that exceeds its time-out even when it runs alone sets no bound.
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
  const auto jobs = all_jobs(command, variables);
  return jobs ? std::optional(jobs->most) : std::nullopt;
}

Run with_jobs(std::vector<std::string> command, const Variables& variables, unsigned jobs) {
  const auto before = all_jobs(command, variables);
  if (!before) return {.command = std::move(command)};
  const Start start = *start_of(command);
  const OptionNames names = jobs_option(start.runner);
  const std::vector<std::string> options = options_of(command, start);
  const std::string number = std::to_string(jobs);
  const auto place = place_of(options, names);
  if (start.runner == Runner::kPytest) {
    const auto& [words, said] = pytest_place(options, names, variables);
    // No more than it might be without this number.
    if (is_automatic(value_at(words, *said)))
      return {std::move(command), {{kAutomatic, std::to_string(std::min(jobs, before->least))}}};
    // The last one counts.
    if (!place)
      return {std::move(command),
              {{"PYTEST_ADDOPTS", fmt::format("{} -n {}", text_of(variables("PYTEST_ADDOPTS")), number)}}};
  }
  if (!place) return {std::move(command), {{"CTEST_PARALLEL_LEVEL", number}}};
  if (start.joined) {
    command[*start.joined] += fmt::format(" {}{}", names.brief, number);
  } else {
    command[start.options + place->word].replace(place->begin, std::string::npos, number);
  }
  return {.command = std::move(command)};
}

std::optional<double> pytest_timeout(const std::vector<std::string>& command, const Variables& variables) {
  const auto start = start_of(command);
  if (!start || start->runner != Runner::kPytest) return std::nullopt;
  const std::vector<std::string> options = options_of(command, *start);
  const PytestConfig config = pytest_config(given_words(options, variables), this_folder());
  const auto general = general_timeout(options, variables, config);
  return general ? std::optional(general->seconds) : std::nullopt;
}

FittedCommand fit_to_timeouts(const std::vector<std::string>& command, const Variables& variables,
                              const report::Baseline& baseline, unsigned gpus) {
  FittedCommand fitted{.run = {.command = command}, .note = {}};
  const std::optional<Jobs> jobs = all_jobs(command, variables);
  const bool knows = std::ranges::any_of(baseline, [](const auto& entry) { return entry.second.use.gpu_ns != 0; });
  if (!jobs || jobs->most < 2 || !knows) return fitted;
  const Start start = *start_of(command);
  const bool ctest = start.runner == Runner::kCtest;
  std::vector<std::string> options = options_of(command, start);
  const std::string here = this_folder();
  std::vector<TimedTest> tests;
  bool all_selected = true;
  if (ctest) {
    CtestSelection selection = ctest_selection(options);
    all_selected = selection.complete;
    report::PersonRecord runner;
    runner.folder = (std::filesystem::path(here) / start.folder).string();
    runner.command = std::move(options);
    runner.command.insert(runner.command.begin(), start.by_build_tool ? "ctest" : command.front());
    const auto asked = ask_ctest(
        {.runner = std::move(runner), .child_folder = here, .last = false, .selection = std::move(selection.words)}, 0);
    if (!asked) return fitted;  // ctest reports what is wrong
    tests = timed(*asked, baseline);
  } else {
    std::vector<std::string> words = given_words(options, variables);
    const PytestConfig config = pytest_config(words, here);
    words.insert(words.begin(), config.addopts.begin(), config.addopts.end());
    const PytestSelection selection(words, here);
    all_selected = selection.complete();
    tests = timed_pytest(baseline, options, variables, config, selection, here);
  }
  const auto most = most_at_once(tests, gpus);
  if (!most || most->most >= jobs->most) return fitted;
  fitted.run = with_jobs(command, variables, most->most);
  const unsigned fewer = std::min(most->most, jobs->least);
  fitted.note = fmt::format(
      "{} starts {} test{} at once and not {}{}: {} has a time-out of {:.3g} s, takes {:.3g} s, {:.3g} s of that on "
      "the GPU, and waiting for others counts. A longer {} allows more{}",
      ctest ? "ctest" : "pytest", fewer, fewer == 1 ? "" : "s", jobs->least == jobs->most ? "" : "up to ", jobs->most,
      report::printable(most->bound.name), most->bound.timeout, most->bound.time, most->bound.gpu, most->bound.given_by,
      all_selected ? "" : ". Tests that the command leaves out may be among those that count");
  return fitted;
}

}  // namespace rota::ci
