// Starting a command from inside another program's process, which must not notice: no fork handlers run, no memory is
// copied, no SIGCHLD arrives, and no wait() of the program's sees a child. Only a program that adopts orphans (pid 1 of a
// container, PR_SET_CHILD_SUBREAPER) gets the command as a child.
#pragma once

#include <string>
#include <vector>

namespace rota::client {

// Starts the file `arguments[0]` with these arguments and nothing but this environment: in a session of its own, with
// no open files but /dev/null and `output`, which is its standard error and also gets the reason if it cannot be
// executed. The calling thread is stopped until then, and must have all signals blocked, so that no handler of the
// program's runs meanwhile; they are still blocked when the command begins. Returns 0, or an errno value.
int start_detached(const std::vector<std::string>& arguments, const std::vector<std::string>& environment, int output);

}  // namespace rota::client
