// Starting a command from inside another program's process, which must not notice: no fork handlers run, no memory is
// copied, no SIGCHLD arrives, and no wait() of the program's sees a child. Only a program that adopts orphans (pid 1 of
// a container, PR_SET_CHILD_SUBREAPER) gets the command as a child.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scheduler/base/descriptor.h"

namespace rota::client {

// Starts the file `arguments[0]` with these arguments and nothing but this environment: in a session of its own, with
// no open files but /dev/null and `output`, which is its standard error and also gets the reason if it cannot be
// executed. The calling thread is stopped until then, and must have all signals blocked, so that no handler of the
// program's runs meanwhile; they are still blocked when the command begins. Returns 0, or an errno value.
int start_detached(const std::vector<std::string>& arguments, const std::vector<std::string>& environment, int output);

// What such a command says, which may come in pieces.
class Heard {
 public:
  Heard() = default;
  // The reading end of a pipe, which does not block.
  explicit Heard(Descriptor from) : from_(std::move(from)) {}
  // The first line, once: when it is whole, or when the command has ended; empty: it has ended without a word. Nothing:
  // it may yet come, or nothing is listened to (any more).
  std::optional<std::string> first_line();

 private:
  Descriptor from_;
  std::string text_;
};

}  // namespace rota::client
