// How many tests ctest may start at once so that none is ended by its own time-out while others use the GPU: the clock
// of a test runs from its start, whoever has the GPU. Known once a baseline has what each test took.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/rota/report/baseline.h"

namespace rota::ci {

// A test that has run before. All in seconds.
struct TimedTest {
  std::string name;
  double time = 0;     // that it took, without what it waited for the GPU
  double gpu = 0;      // of that, on the GPU
  double timeout = 0;  // its own
};

struct Parallel {
  unsigned most = 1;
  TimedTest bound;  // which allows no more
};

// Of tests that share a GPU each has its fair share: with n at once on one GPU, one that needs it for g takes at most
// time + (n - 1) g. A tenth of the time-out stays unused. Nothing: no test bounds it.
std::optional<Parallel> most_at_once(const std::vector<TimedTest>& tests, unsigned gpus);

// How many the command asks for: -j8, -j 8, --parallel 8, --parallel=8. Nothing: it is no ctest, or does not say.
std::optional<unsigned> jobs_of(const std::vector<std::string>& command);
// The same command with another number.
std::vector<std::string> with_jobs(std::vector<std::string> command, unsigned jobs);

// The command as it is to be run, and a line about it if it was changed. `gpus` tests share among themselves. Lists
// ctest's tests if the command is one that runs several at once, and the baseline knows times.
struct FittedCommand {
  std::vector<std::string> command;
  std::string note;
};
FittedCommand fit_to_timeouts(const std::vector<std::string>& command, const report::Baseline& baseline, unsigned gpus);

}  // namespace rota::ci
