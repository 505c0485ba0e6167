// Programs that were started in a session and run without rota: something between `rota run` and them has taken
// LD_PRELOAD from their environment (a script, sudo, a wrapper of a sanitizer), and left the session's limit in it; or
// they are of a kind that no preload reaches. They take no turns, and no limit holds for them.
//
// No code of rota's runs in such a program, so it is told of by those that look: `rota status`, `rota doctor`, and a
// `rota run --report` or `rota ci` while it waits for what it has started. They look at what the kernel says of the
// processes that this user may see: the variables that each was started with, and the files that it has mapped. So it
// costs the programs nothing, and has two limits: a program whose environment was cleaned altogether (env -i) is not
// known to belong to a session, and neither is another user's where this one is not root.
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

// All of them that have loaded a driver and belong to the rotad at this socket, by pid.
std::vector<Uncovered> uncovered_programs(const std::string& socket);
// Whether this process is one of them.
bool is_uncovered(pid_t process, Uncovered& found);

// What helps in most cases.
inline constexpr const char* kUncoveredRemedy =
    "pass LD_PRELOAD on, or use `rota run --system-preload`, which reaches programs without it";

}  // namespace rota::tool
