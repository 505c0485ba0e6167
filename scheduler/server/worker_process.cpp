// The code of rotad's worker processes. They were forked from a process that may have had threads, so they only make
// system calls.
#include "scheduler/server/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "scheduler/protocol/packet.h"
#include "scheduler/server/sent_descriptor.h"

namespace rota::server {
namespace {

// After this time SIGALRM ends a worker, whatever it waits for in the kernel, unless nothing can end that wait. Far
// more than a machine that is busy needs.
constexpr unsigned kSecondsPerJob = 10;
// Until another worker is tried, where processes are refused.
constexpr int kForkAgainMilliseconds = 100;

// Closes all descriptors from `first` on that are not in `kept`, which is sorted.
template <std::size_t kSize>
void close_all_but(unsigned first, const std::array<int, kSize>& kept) {
  const auto close_range = [](unsigned from, unsigned to) {
    if (from > to || syscall(SYS_close_range, from, to, 0) == 0) return;
    // An older kernel. This process is a copy of one that has just started, so there are few.
    constexpr unsigned kMost = 4096;
    for (unsigned number = from; number <= std::min(to, kMost); ++number) close(static_cast<int>(number));
  };
  for (const int number : kept) {
    if (number < 0 || static_cast<unsigned>(number) < first) continue;
    if (static_cast<unsigned>(number) > first) close_range(first, static_cast<unsigned>(number) - 1);
    first = static_cast<unsigned>(number) + 1;
  }
  close_range(first, ~0U);
}

void end_with_parent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
}

JobOutcome take_packet(int from, const int* to, const protocol::Message& message) {
  char bytes[protocol::kMaxMessageBytes];
  Descriptor sent[2];
  // The packet's descriptors are closed in this process: when `sent` is destroyed, or by the kernel if there are more.
  const ssize_t length = protocol::read_packet(
      from, bytes, sizeof bytes, to != nullptr ? std::span(sent) : std::span<Descriptor>(), MSG_DONTWAIT | MSG_TRUNC);
  if (to == nullptr) return JobOutcome::kDone;
  if (length <= 0 || !sent[0] || sent[1] || !may_be_memory(sent[0])) return JobOutcome::kNoMemory;
  const int memory[] = {sent[0].get()};
  return protocol::write_packet(*to, &message, protocol::bytes_of(message.kind), memory, MSG_DONTWAIT) >= 0
             ? JobOutcome::kDone
             : JobOutcome::kNotSent;
}

// Ends when rotad does.
[[noreturn]] void work(int end) {
  for (;;) {
    alarm(0);
    Job job;
    Descriptor sockets[2];
    const ssize_t length = protocol::read_packet(end, &job, sizeof job, sockets, 0);
    if (length <= 0) _exit(0);
    if (length != sizeof job || !sockets[0]) continue;
    JobDone done{.number = job.number, .outcome = JobOutcome::kDone};
    if (job.what == Job::Do::kClose) {
      // The worker's descriptor has to be the last one that is open.
      Job next;
      do {
        if (protocol::read_packet(end, &next, sizeof next, {}, 0) <= 0) _exit(0);
      } while (next.what != Job::Do::kCloseNow || next.number != job.number);
      alarm(kSecondsPerJob);
    } else {
      alarm(kSecondsPerJob);
      const int to = sockets[1].get();
      done.outcome =
          take_packet(sockets[0].get(), job.what == Job::Do::kPassOn && to >= 0 ? &to : nullptr, job.message);
    }
    for (Descriptor& socket : sockets) Descriptor(std::move(socket));
    protocol::write_packet(end, &done, sizeof done, {}, 0);
  }
}

void on_child(int /*signal*/) {}

[[noreturn]] void keep(std::array<int, kWorkers> ends) {
  std::array<pid_t, kWorkers> workers{};
  const pid_t self = getpid();
  // The death of a worker interrupts only ppoll().
  sigset_t children;
  sigset_t nothing;
  sigemptyset(&nothing);
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  sigprocmask(SIG_SETMASK, &children, nullptr);
  struct sigaction noted{};
  noted.sa_handler = on_child;
  sigaction(SIGCHLD, &noted, nullptr);
  bool refused = false;
  for (;;) {
    std::array<pollfd, kWorkers> jobs{};
    for (std::size_t i = 0; i < kWorkers; ++i) {
      jobs[i] = {.fd = workers[i] == 0 ? ends[i] : -1, .events = POLLIN, .revents = 0};
    }
    const timespec again{.tv_sec = 0, .tv_nsec = kForkAgainMilliseconds * 1'000'000L};
    if (refused) ppoll(nullptr, 0, &again, &nothing);
    if (ppoll(jobs.data(), jobs.size(), nullptr, &nothing) < 0)
      std::for_each(jobs.begin(), jobs.end(), [](pollfd& job) { job.revents = 0; });
    for (pid_t dead; (dead = waitpid(-1, nullptr, WNOHANG)) > 0;) {
      const auto worker = std::find(workers.begin(), workers.end(), dead);
      if (worker == workers.end()) continue;
      *worker = 0;
      const JobDone killed{.number = 0, .outcome = JobOutcome::kKilled};
      protocol::write_packet(ends[static_cast<std::size_t>(worker - workers.begin())], &killed, sizeof killed, {},
                             MSG_DONTWAIT);
    }
    refused = false;
    for (std::size_t i = 0; i < kWorkers; ++i) {
      if (jobs[i].revents == 0) continue;
      char byte;
      if (recv(ends[i], &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) == 0) _exit(0);  // rotad has ended
      workers[i] = fork();
      if (workers[i] == 0) {
        end_with_parent(self);
        close_all_but(3, std::array{ends[i]});
        sigprocmask(SIG_SETMASK, &nothing, nullptr);
        work(ends[i]);
      }
      if (workers[i] < 0) {
        workers[i] = 0;
        refused = true;
      }
    }
  }
}

}  // namespace

Result<WorkerProcesses> start_workers() {
  const auto failed = [](const char* what) {
    return Error{fmt::format("cannot start the processes that handle descriptors: {}: {}", what, strerror(errno))};
  };
  WorkerProcesses processes;
  std::array<Descriptor, kWorkers> ours;
  std::array<Descriptor, kWorkers> theirs;
  for (std::size_t i = 0; i < kWorkers; ++i) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return failed("socketpair");
    ours[i] = Descriptor(pair[0]);
    theirs[i] = Descriptor(pair[1]);
    if (fcntl(pair[0], F_SETFL, O_NONBLOCK) != 0) return failed("fcntl");
  }
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t self = getpid();
  processes.keeper = fork();
  if (processes.keeper == 0) {
    end_with_parent(self);
    prctl(PR_SET_NAME, "rotad-files");
    // A terminal's Ctrl-C and a service manager's signal are for rotad; these end after it.
    for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) signal(signal_number, SIG_IGN);
    signal(SIGALRM, SIG_DFL);
    std::array<int, kWorkers> ends{};
    std::transform(theirs.begin(), theirs.end(), ends.begin(), [](const Descriptor& end) { return end.get(); });
    if (const int nothing = open("/dev/null", O_RDWR); nothing >= 0) {
      for (const int standard : {0, 1, 2}) {
        if (std::find(ends.begin(), ends.end(), standard) == ends.end()) dup2(nothing, standard);
      }
    }
    std::sort(ends.begin(), ends.end());
    close_all_but(3, ends);
    keep(ends);
  }
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  if (processes.keeper < 0) return failed("fork");
  std::transform(ours.begin(), ours.end(), processes.ends.begin(), [](Descriptor& end) { return end.release(); });
  return processes;
}

}  // namespace rota::server
