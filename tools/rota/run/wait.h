// Runs a program as a child of a process that stays, to say something when it has ended, and cannot be told from the
// program otherwise: every signal that its caller or a terminal sends reaches the program, once; it stops and goes on
// when the program does; and it ends as the program did.
//
// The program could have taken this process's place, with another process that waits. But its caller would go on before
// the report is written, and could not be given another exit status. So the process that the caller knows stays, and
// everything that it gets is passed on.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <optional>

#include "tools/rota/run/launch.h"
#include "tools/rota/run/signals.h"

namespace rota::tool {

struct Waiting {
  // What waitid says of each child that has ended, while /proc still knows it, for a process that adopts orphans
  // (PR_SET_CHILD_SUBREAPER): all its children are waited for until the program has ended. Null: only the program.
  std::function<void(const siginfo_t&)> ended;
  // A signal that is about to be passed on, or that the program has got already.
  std::function<void(int)> signalled;
  // What a process that survives this one does if this one is killed, after it has killed the program.
  std::function<void()> clean_up;
  // No process can be started, which was said: how the program is to run in this process's place. Null: it is not
  // started.
  std::function<LaunchOptions()> in_place;
  // Whether the program adopts orphans as this process did when it was started; nothing: as this process does now.
  std::optional<bool> adopts = {};
};

// Returns how the program ended (signals.h); 126 and 127 as run_in_place, after a line.
int run_and_wait(const LaunchOptions& options, const TakenSignals& signals, const Waiting& waiting = {});

// Takes away all children that have ended by now, after `ended` was told of each. Returns the wait status of `child`,
// as waitpid says it; -1 if that was not among them.
int reap(pid_t child, const std::function<void(const siginfo_t&)>& ended);

}  // namespace rota::tool
