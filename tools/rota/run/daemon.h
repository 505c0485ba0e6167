// The rotad that serves a program: one that already listens, or otherwise the user's own, which is started here and
// ends by itself.
#pragma once

#include <string>

namespace rota::tool {

struct DaemonRequest {
  std::string mode;     // used if a daemon has to be started; empty: its default
  std::string quantum;  // likewise
};

struct Daemon {
  std::string socket;    // where it listens; empty if there is none
  std::string problem;   // one line that says why not; or, with a socket, what the user should know
  bool silent = false;   // it is there and does not answer: its programs take turns once it does
  bool chooses = false;  // GPUs for programs (choose.h)
  unsigned gpus = 0;     // how many, for a program that does not say; 0: it gets all
};

// Finds or starts a rotad and asks it to stay as long as this process lives, whatever program that becomes. Safe if
// several processes do so at once: one of them starts it, the others wait.
Daemon find_or_start_daemon(const DaemonRequest& request);

}  // namespace rota::tool
