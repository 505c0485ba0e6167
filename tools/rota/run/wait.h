// Runs a program as a child of this process, which stays to report something when the program has ended. In all other
// respects it behaves as the program would: every signal that its caller or a terminal sends reaches the program, once;
// it stops and continues when the program does; and it ends as the program did.
//
// The program could have taken this process's place, with another process that waits. But then the caller would
// continue before the report is written, and could not be given another exit status. So the process that the caller
// knows stays, and passes on everything that it gets.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <optional>

#include "tools/rota/run/launch.h"
#include "tools/rota/run/signals.h"

namespace rota::tool {

struct Waiting {
  // Called with what waitid reports of each child that has ended, while /proc still shows it. For a process that adopts
  // orphans (PR_SET_CHILD_SUBREAPER): all its children are waited for until the program has ended. Null: only the
  // program is.
  std::function<void(const siginfo_t&)> ended;
  // Called with a signal that is about to be passed on, or that the program has already got.
  std::function<void(int)> signalled;
  // If this process is killed, another one survives, kills the program, and then calls this.
  std::function<void()> clean_up;
  // Called if no process can be started, after a line said so: returns how to run the program in this process's place.
  // Null: the program is not started.
  std::function<LaunchOptions()> in_place;
  // Whether the program adopts orphans as this process did when it was started; nothing: as this process does now.
  std::optional<bool> adopts = {};
};

// Returns how the program ended (signals.h); 126 and 127 as run_in_place, after a line.
int run_and_wait(const LaunchOptions& options, const TakenSignals& signals, const Waiting& waiting = {});

// Reaps all children that have ended by now, after calling `ended` for each. Returns the wait status of `child` as from
// waitpid; -1 if it was not among them.
int reap(pid_t child, const std::function<void(const siginfo_t&)>& ended);

}  // namespace rota::tool
