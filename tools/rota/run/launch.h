// Starts a program under rota: what is preloaded, which rotad serves it, and what happens if something is missing.
// Whatever goes wrong on rota's side is one line on stderr, and the program runs as it would have without rota.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/base/result.h"
#include "scheduler/protocol/session_list.h"
#include "tools/rota/run/daemon.h"

namespace rota::tool {

struct LaunchOptions {
  std::vector<std::string> command;                              // program and arguments; not empty
  std::vector<std::pair<std::string, std::string>> environment;  // set for the program on top of what is inherited
  std::vector<std::string> preloads;                             // paths, preloaded right after librota.so (preload.h)
  bool share = true;               // under rota; false: nothing is preloaded and no rotad is searched for
  bool everywhere = false;         // also processes that are started with a clean environment (everywhere.h)
  bool daemon = true;              // find a rotad; start the user's own if none answers
  std::string mode;                // used if a rotad has to be started; empty: its default
  std::string quantum;             // likewise
  std::string name;                // of the job; empty: none
  protocol::SessionEntry session;  // limits and name; its id is chosen here
  // What CUDA_VISIBLE_DEVICES becomes, once rotad was searched for (choose.h); null, or an empty text: it stays as it
  // is. Given the id of the innermost session. With an error the program is not started.
  std::function<Result<std::string>(const Daemon& daemon, const std::string& session)> choose_gpus = nullptr;
};

// Replaces this process by the program: its pid, terminal, signals and exit status are its own. Returns only if it
// cannot be started: 127 if there is no such command, 126 if it cannot be executed (as shells say it), after one line.
int run_in_place(const LaunchOptions& options);

// What the loader should preload, colon-separated: the sanitizer's runtime if the program needs one (it insists on
// being first), then `ours`, then what `inherited` names (the previous LD_PRELOAD). Nothing twice, and nothing from
// `inherited` with the file name of one of `ours`.
std::string preload_list(const std::string& inherited, const std::vector<std::string>& ours,
                         const std::string& sanitizer);

// The path of this executable; empty if the kernel does not tell it, with errno set.
std::string own_executable();
// The folder of the shims: ../lib/rota from this executable.
std::string shim_directory();

}  // namespace rota::tool
