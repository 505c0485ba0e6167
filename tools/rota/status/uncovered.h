// Programs that were started in a session and run without rota: something between `rota run` and them has removed
// LD_PRELOAD from their environment (a script, sudo, a wrapper of a sanitizer), but not the session's limit; or no
// preload reaches them. They take no turns, and no limit holds for them.
//
// No code of rota's runs in such a program, so other commands report it: `rota status`, `rota doctor`, and a `rota run
// --report` or `rota ci` while it waits for what it has started. They read what the kernel shows of the processes that
// this user may see: the variables that each was started with, and the files that it has mapped. This costs the
// programs nothing, and has two limits: a program with an entirely cleaned environment (env -i) is not known to belong
// to a session, and neither is another user's program unless this user is root.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace rota::tool {

struct Uncovered {
  pid_t process = 0;
  std::string command;   // its arguments, separated by blanks
  std::string socket;    // of its session's rotad; "" where there was none
  bool limited = false;  // a limit on its memory was set
  std::string why;       // a clause
  const char* remedy = "";
};

// All such programs that have loaded a driver and belong to the rotad at this socket, by pid.
std::vector<Uncovered> uncovered_programs(const std::string& socket);
// Whether this process is one of them.
bool is_uncovered(pid_t process, Uncovered& found);

// What helps in most cases.
inline constexpr const char* kUncoveredRemedy =
    "pass LD_PRELOAD on, or use `rota run --system-preload`, which reaches programs without it";

}  // namespace rota::tool
