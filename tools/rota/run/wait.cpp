#include "tools/rota/run/wait.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "tools/rota/run/keeper.h"
#include "tools/rota/run/output.h"

namespace rota::tool {
namespace {

constexpr int kNoProcess = 126;

// The signals that this process and its witnesses have received. They are collected until a round brings nothing new.
struct Arrived {
  std::vector<siginfo_t> own;
  std::vector<siginfo_t> witnessed;
};

void collect(const TakenSignals& signals, std::initializer_list<Witness*> witnesses, Arrived& arrived) {
  constexpr int kRounds = 100;  // a process that sends without end must not keep the program from its signals
  const auto count = [&] { return arrived.own.size() + arrived.witnessed.size(); };
  for (int round = 0; round < kRounds; ++round) {
    const std::size_t before = count();
    setpgid(0, INT_MAX);  // there is no such group: fails, after what keeper.h says
    take_pending(signals.all(), arrived.own);
    for (Witness* witness : witnesses) witness->ask(arrived.witnessed);
    if (count() == before) return;
  }
}

bool is_real_time(int signal) {
  return signal >= SIGRTMIN && signal <= SIGRTMAX;
}

bool stops(int signal) {
  return signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

// The kernel discards a pending SIGCONT when a stopping signal comes, and pending stopping signals when SIGCONT comes.
bool discards(int later, int pending) {
  return (stops(later) && pending == SIGCONT) || (later == SIGCONT && stops(pending));
}

// Real-time signals queue, so each one that was sent to the group is also at a witness. Other signals merge with a
// pending one of the same number: one that is sent to this process alone while the group gets it merges with the
// group's. A signal that this process had already taken when the group got its opposite may have been discarded at the
// witness.
bool came_to_the_group(const siginfo_t& signal, std::vector<siginfo_t>& witnessed) {
  const bool queues = is_real_time(signal.si_signo);
  const auto found = std::ranges::find_if(witnessed, [&](const siginfo_t& other) {
    if (queues) {
      return other.si_signo == signal.si_signo && other.si_code == signal.si_code && other.si_pid == signal.si_pid;
    }
    return other.si_signo == signal.si_signo || discards(other.si_signo, signal.si_signo);
  });
  if (found == witnessed.end()) return false;
  if (queues) witnessed.erase(found);
  return true;
}

void pass_on(pid_t process, siginfo_t signal) {
  // Only what sigqueue sends may be passed on with its sender and value.
  if (signal.si_code == SI_QUEUE && syscall(SYS_rt_sigqueueinfo, process, signal.si_signo, &signal) == 0) {
    return;
  }
  kill(process, signal.si_signo);
}

class Wrapper {
 public:
  Wrapper(const TakenSignals& signals, const Waiting& waiting, Witness program)
      : signals_(signals),
        waiting_(waiting),
        keeper_(waiting.clean_up),
        start_(std::move(program)),
        program_(start_.process()) {}

  // The wait status of the program.
  int run() {
    keeper_.keep(program_);
    // A signal to the group may have come before the program existed or was in the group. So the program gets what this
    // process got, except what it has got itself.
    Arrived early;
    collect(signals_, {&start_, &keeper_.witness()}, early);
    for (const siginfo_t& signal : early.own) {
      if (is_meant_for_program(signal)) pass_on(program_, signal);
    }
    start_.tell('g');
    start_.leave();
    while (true) {
      if (const int status = look_at_children(); status != -1) {
        is_over_ = true;
        take({});  // the last that it has sent to its parent
        return status;
      }
      siginfo_t first{};
      if (sigwaitinfo(&signals_.all(), &first) < 0) continue;
      take({.own = {first}, .witnessed = {}});
    }
  }

 private:
  // False for what the kernel reports about children, and for what was caused by a write of this process or by its
  // keeper.
  bool is_meant_for_program(const siginfo_t& signal) const {
    const bool is_from_process = signal.si_code == SI_USER;
    switch (signal.si_signo) {
      case SIGCHLD:
        return signal.si_code <= 0;
      case SIGPIPE:
      case SIGXFSZ:
        return !is_from_process || signal.si_pid != getpid();
      case SIGCONT:
        return !is_from_process || signal.si_pid != keeper_.witness().process();
      default:
        return true;
    }
  }

  void take(Arrived arrived) {
    collect(signals_, {&keeper_.witness()}, arrived);
    // If there is no witness, a signal from the terminal was sent to the group, and others were not.
    const bool knows = static_cast<bool>(keeper_.witness());
    for (const siginfo_t& signal : arrived.own) {
      if (!is_meant_for_program(signal)) continue;
      const bool to_group = knows ? came_to_the_group(signal, arrived.witnessed) : signal.si_code > 0;
      // What the program sends to its parent (some servers report that they are ready) is meant for the process that
      // started this one.
      if (!to_group && signal.si_code <= 0 && signal.si_pid == program_) {
        pass_on(getppid(), signal);
        continue;
      }
      if (is_over_) continue;
      if (waiting_.signalled) waiting_.signalled(signal.si_signo);
      if (!to_group || missed_by_program()) pass_on(program_, signal);
    }
  }

  // Whether signals to this process's group do not reach the program: a shell that creates its own process group would
  // lead this one if it had taken this process's place.
  bool missed_by_program() const { return getpgrp() == getpid() && getpgid(program_) != getpgrp(); }

  int look_at_children() {
    int status = -1;  // stays so if the program has not ended
    if (waiting_.ended) {
      status = reap(program_, waiting_.ended);
    } else {
      waitpid(program_, &status, WNOHANG);
    }
    if (status != -1) return status;
    siginfo_t state{};
    if (waitid(P_PID, static_cast<id_t>(program_), &state, WSTOPPED | WNOHANG) == 0 && state.si_pid == program_) {
      stop_by(state.si_status);
    }
    return -1;
  }

  // Stops this process as the program has stopped, for the process that waits for this one, until the program is
  // continued.
  void stop_by(int number) {
    keeper_.watch();
    stop_as(number);
    keeper_.rest();
  }

  const TakenSignals& signals_;
  const Waiting& waiting_;
  // In this order: the program must not inherit the keeper's line, nor keep it open.
  Keeper keeper_;
  Witness start_;
  pid_t program_;
  bool is_over_ = false;  // then its pid may be another process's
};

}  // namespace

int reap(pid_t child, const std::function<void(const siginfo_t&)>& ended) {
  int found = -1;
  while (true) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return found;
    ended(info);
    int status = 0;
    if (waitpid(info.si_pid, &status, 0) == child) found = status;
  }
}

int run_and_wait(const LaunchOptions& options, const TakenSignals& signals, const Waiting& waiting) {
  // The only property of a process that exec keeps and a child does not inherit.
  int adopts_orphans = 0;
  prctl(PR_GET_CHILD_SUBREAPER, &adopts_orphans);
  if (waiting.adopts) adopts_orphans = *waiting.adopts ? 1 : 0;
  Witness program = start_waiting_child([&] {
    signals.hand_on();
    if (adopts_orphans != 0) prctl(PR_SET_CHILD_SUBREAPER, 1);
    // Prepared in the child, so that the environment of this process is unchanged and the daemon stays for the program.
    return run_in_place(options);
  });
  if (program.process() < 0) {
    write_message(fmt::format("rota: cannot start a process: {}\n", std::strerror(errno)));
    if (!waiting.in_place) return kNoProcess;
    const LaunchOptions alone = waiting.in_place();
    signals.hand_on();
    return run_in_place(alone);
  }
  return ending_of(Wrapper(signals, waiting, std::move(program)).run());
}

}  // namespace rota::tool
