// A process next to one that waits for a program in its caller's place (wait.h). It is in the same process group and
// does nothing but three things that the waiting process cannot do for itself:
//
// It is a witness. A signal that was sent to the whole group has reached the program as well, one that was sent to the
// waiting process alone has not; the kernel does not say which it was. The witness gets what the group gets, and
// nothing else. The list of a group's processes cannot change while somebody sends it a signal, so after a call of
// setpgid() either each of its processes has the signal or none has.
//
// It survives. If the waiting process is killed, the keeper kills the program and cleans up. (PR_SET_PDEATHSIG would be
// seen by the program, which could also lose it: programs with set-user-ID do.)
//
// It stays awake. A waiting process that has stopped with its program, as a shell expects, is not told when somebody
// continues only the program.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <vector>

#include "scheduler/base/descriptor.h"

namespace rota::tool {

// Takes the pending signals from the process at the other end of the line, which is in take_questions().
class Witness {
 public:
  Witness() = default;
  Witness(pid_t process, Descriptor line) : process_(process), line_(std::move(line)) {}
  pid_t process() const { return process_; }
  explicit operator bool() const { return static_cast<bool>(line_); }

  // Appends them; false: there is nobody to ask.
  bool ask(std::vector<siginfo_t>& signals);
  // Sends one of the other words of keeper.cpp.
  bool tell(char word, pid_t process = 0);
  void leave() { line_ = {}; }

 private:
  friend class Keeper;
  bool answered(void* answer, std::size_t bytes) const;

  pid_t process_ = -1;
  Descriptor line_;
};

// A child of this process that has blocked all signals, as this one must have, and runs `become` when Witness::start
// says so; before, it answers questions. It exits with what `become` returns. Without a process (-1): errno says why.
Witness start_waiting_child(const std::function<int()>& become);

class Keeper {
 public:
  // `clean_up` is run by the keeper if this process was killed, after the program's end; it may be null. If no process
  // can be started there is no keeper, and the functions below do nothing.
  explicit Keeper(const std::function<void()>& clean_up);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // The program to kill, and to watch. It has not been waited for.
  void keep(pid_t program);
  // Called when this process is about to stop because the program did, and when it has continued.
  void watch() { witness_.tell('w'); }
  void rest() { witness_.tell('r'); }

  Witness& witness() { return witness_; }
  const Witness& witness() const { return witness_; }

 private:
  Witness witness_;
};

// Takes the signals of `set` that are pending for this process, and appends them.
void take_pending(const sigset_t& set, std::vector<siginfo_t>& signals);

}  // namespace rota::tool
