// A child of a runner, and the processes that it started.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tools/rota/report/account_file.h"

namespace rota::ci {

// A command that a child was seen with: exec changes it.
struct SeenCommand {
  std::vector<std::string> raw;    // its arguments, byte by byte
  std::vector<std::string> words;  // as ctest lists them, like the folder
  std::string folder;
  std::string shown;     // as ctest's log shows it
  bool cut_off = false;  // an account holds only the beginning of a long one; the last argument may be part of one
};

struct Group {
  report::PersonRecord child;  // of the runner
  std::vector<SeenCommand> commands;
  std::vector<std::string> processes;  // ids, each once
  report::Realtime begin_ns = 0;
  report::Realtime last_ns = 0;  // its processes' last sign of life
};

// To a clock tick, 10 ms.
inline report::Realtime start_of(const report::PersonRecord& person, report::Realtime boot_ns) {
  static const auto ticks = static_cast<std::uint64_t>(sysconf(_SC_CLK_TCK));
  return boot_ns + static_cast<report::Realtime>(person.start_ticks * (1'000'000'000 / ticks));
}

// The last time at which it is certain to have been alive.
inline report::Realtime last_sign_of(const report::ProcessAccount& process) {
  return std::max(process.began_ns, process.ended_ns);
}

}  // namespace rota::ci
