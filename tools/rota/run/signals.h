// Signals of a process that waits for a program in its caller's place: it takes them one by one, passes the caller's
// settings on, and ends as the program did.
#pragma once

#include <csignal>

namespace rota::tool {

// From here on this process is told of its children and of every signal that can be blocked, by sigwaitinfo, whatever
// its caller has set. That stays until the process ends, unless hand_on() is called: what arrives when the program is
// over was meant for the program, and must change neither the report nor the exit status. For the main thread, once.
class TakenSignals {
 public:
  TakenSignals();
  TakenSignals(const TakenSignals&) = delete;
  TakenSignals& operator=(const TakenSignals&) = delete;

  const sigset_t& all() const { return all_; }
  // In a process that becomes a program: the mask and the disposition that this process was started with. A signal that
  // a write of its own has raised is not handed on.
  void hand_on() const;

 private:
  sigset_t all_{};
  sigset_t before_{};
  struct sigaction children_{};
};

// Stops this process by a signal that it has blocked, until somebody continues it.
void stop_as(int signal);

// How a command has to end: an exit code below kSignalled, or kSignalled plus the signal that its program died of.
inline constexpr int kSignalled = 256;
constexpr int ended_by(int signal) {
  return kSignalled + signal;
}
// The exit code that a shell reports for it.
constexpr int shell_code(int ending) {
  return ending >= kSignalled ? 128 + ending - kSignalled : ending;
}
// The ending for what waitpid reports.
int ending_of(int wait_status);

// Ends this process by the signal, without writing a core file. Returns the exit code if there was no signal, or if
// this process does not die of it (the first process of a container).
int end_as(int ending);

}  // namespace rota::tool
