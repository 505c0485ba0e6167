// How many tests ctest or pytest-xdist may start at once so that none is ended by its own time-out while others use the
// GPU: a test's clock runs from its start, also while others have the GPU. Known once a baseline says what each test
// took.
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
  double time = 0;            // its duration, without its waits for the GPU
  double gpu = 0;             // of that, on the GPU
  double timeout = 0;         // its own
  const char* given_by = "";  // what to change for a longer one
};

struct Parallel {
  unsigned most = 1;
  TimedTest bound;  // the test that allows no more
};

// Tests that share a GPU get equal shares: with n at once on one GPU, a test that needs it for g takes at most time +
// (n - 1) g. A tenth of the time-out is kept in reserve. Nothing: no test sets a bound.
std::optional<Parallel> most_at_once(const std::vector<TimedTest>& tests, unsigned gpus);

// A command with the variables that it is run with.
struct Run {
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> changed{};  // variables to set in addition
};
// The value of a variable; null: it is not set.
using Variables = std::function<const char*(const char*)>;

// How many tests it runs at once: ctest's -j8, -j 8, --parallel 8, --parallel=8 or CTEST_PARALLEL_LEVEL, also where
// make, ninja or cmake --build makes CMake's target "test" (make test ARGS=-j8); pytest's -n8, -n 8, --numprocesses 8,
// --numprocesses=8, there, in PYTEST_ADDOPTS or in its configuration's addopts, and for -n auto and -n logical
// PYTEST_XDIST_AUTO_NUM_WORKERS or how many it may be at most. Nothing: it is neither, or does not say.
std::optional<unsigned> jobs_of(const std::vector<std::string>& command, const Variables& variables);
// The same command with another number. For -n auto and -n logical the number is at most the least that these may mean.
Run with_jobs(std::vector<std::string> command, const Variables& variables, unsigned jobs);
// The time-out in seconds of each of pytest's tests that has no mark: from --timeout, in any place where -n may be,
// from PYTEST_TIMEOUT, or from its configuration's timeout. Nothing: it is no pytest, or sets none.
std::optional<double> pytest_timeout(const std::vector<std::string>& command, const Variables& variables);

// The command to run, and a line about it if it was changed. The tests share `gpus` GPUs. Lists ctest's tests if the
// command is one that runs several at once and the baseline knows times.
struct FittedCommand {
  Run run;
  std::string note;
};
FittedCommand fit_to_timeouts(const std::vector<std::string>& command, const Variables& variables,
                              const report::Baseline& baseline, unsigned gpus);

}  // namespace rota::ci
