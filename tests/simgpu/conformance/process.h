// A process of this program for one rule, with a limit: the whole group is killed when it is over.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace conformance {

struct Ended {
  bool timed_out = false;
  int status = 0;  // exit status, if no signal ended it
  int signal = 0;  // that ended it
};

// `environment`: NAME=value entries that replace or join this process's own. stdout and stderr go to the file `output`.
Ended run_process(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                  const std::string& output, std::chrono::seconds limit);

}  // namespace conformance
