// How many tests ctest or pytest-xdist may start at once so that none is ended by its own time-out while others use the
// GPU: the clock of a test runs from its start, whoever has the GPU. Known once a baseline has what each test took.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/rota/report/baseline.h"

namespace rota::ci {

// A test that has run before. All in seconds.
struct TimedTest {
  std::string name;
  double time = 0;            // that it took, without what it waited for the GPU
  double gpu = 0;             // of that, on the GPU
  double timeout = 0;         // its own
  const char* given_by = "";  // what a person would change for a longer one
};

struct Parallel {
  unsigned most = 1;
  TimedTest bound;  // which allows no more
};

// Of tests that share a GPU each has its fair share: with n at once on one GPU, one that needs it for g takes at most
// time + (n - 1) g. A tenth of the time-out stays unused. Nothing: no test bounds it.
std::optional<Parallel> most_at_once(const std::vector<TimedTest>& tests, unsigned gpus);

// A command with the variables that it is run with.
struct Run {
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> changed{};  // variables that it is to have besides
};
// The value of a variable; null: it is not set.
using Variables = std::function<const char*(const char*)>;

// How many tests it runs at once: ctest's -j8, -j 8, --parallel 8, --parallel=8 or CTEST_PARALLEL_LEVEL, also where
// make, ninja or cmake --build makes CMake's target "test" (make test ARGS=-j8); pytest's -n8, -n 8, --numprocesses 8,
// --numprocesses=8, there, in PYTEST_ADDOPTS or in its configuration's addopts, and for -n auto and -n logical
// PYTEST_XDIST_AUTO_NUM_WORKERS or how many it may be at most. Nothing: it is neither, or does not say.
std::optional<unsigned> jobs_of(const std::vector<std::string>& command, const Variables& variables);
// The same with another number. For -n auto and -n logical with no more than it may be at least.
Run with_jobs(std::vector<std::string> command, const Variables& variables, unsigned jobs);
// The time-out of each of pytest's tests that has no mark: by --timeout, wherever -n may be, by PYTEST_TIMEOUT, or by
// its configuration's timeout, in seconds. Nothing: it is no pytest, or does not say.
std::optional<double> pytest_timeout(const std::vector<std::string>& command, const Variables& variables);

// The command as it is to be run, and a line about it if it was changed. `gpus` tests share among themselves. Lists
// ctest's tests if the command is one that runs several at once, and the baseline knows times.
struct FittedCommand {
  Run run;
  std::string note;
};
FittedCommand fit_to_timeouts(const std::vector<std::string>& command, const Variables& variables,
                              const report::Baseline& baseline, unsigned gpus);

}  // namespace rota::ci
