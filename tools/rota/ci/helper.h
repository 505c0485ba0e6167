// Programs that the rig runs for itself while the job runs, such as debuggers and a ctest that lists its tests: without
// rota in them, and no part of the job.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "scheduler/base/result.h"

namespace rota::ci {

struct HelperOutput {
  std::string text;      // of its standard output
  bool ended = false;    // false: it was ended for its time, or for its length
  bool missing = false;  // there is no such program
};

// Runs it in `folder` (empty: this process's), until then at most and up to some output; then it is killed, with what
// it has started. Any thread.
Result<HelperOutput> run_helper(const std::vector<std::string>& command, const std::string& folder,
                                std::chrono::steady_clock::time_point until, std::size_t most_bytes);

// Whether this process is a helper, or one that a helper has started, which runs.
bool is_helper(pid_t process);
// Ends those that still run; whoever waits for them goes on.
void end_helpers();

}  // namespace rota::ci
