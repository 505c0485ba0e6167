// Programs that the rig runs for itself while the job runs, such as debuggers and a ctest that lists its tests. They
// run without rota and are not part of the job.
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
  bool ended = false;    // false: it was ended because it took too long or printed too much
  bool missing = false;  // there is no such program
};

// Runs it in `folder` (empty: this process's). If it still runs at that time, or has printed more than that, it is
// killed with everything that it has started. Any thread.
Result<HelperOutput> run_helper(const std::vector<std::string>& command, const std::string& folder,
                                std::chrono::steady_clock::time_point until, std::size_t most_bytes);

// Whether this process is a running helper, or was started by one.
bool is_helper(pid_t process);
// Ends those that still run; threads that wait for them continue.
void end_helpers();

}  // namespace rota::ci
