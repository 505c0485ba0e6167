// The rotad that serves a program: found where one listens, else the user's own, started and left to end by itself.
#pragma once

#include <string>

namespace rota::tool {

struct DaemonRequest {
  std::string mode;     // for a daemon that has to be started; empty: its default
  std::string quantum;  // likewise
};

struct Daemon {
  std::string socket;   // where it listens; empty if there is none
  std::string problem;  // one line why not; or, beside a socket, what the person should know
};

// Finds or starts a rotad and asks it to stay as long as this process lives, whatever program that becomes. Safe when
// many do so at once: one of them starts it, the others wait for that.
Daemon find_or_start_daemon(const DaemonRequest& request);

}  // namespace rota::tool
