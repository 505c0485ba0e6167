#include "tools/rota/run/keeper.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace rota::tool {
namespace {

// The interval in which a process that does not answer, or a stopped program, is checked.
constexpr int kLookMs = 50;
// A killed program may be in a long call of the driver.
constexpr int kProgramsEndMs = 10'000;

struct Question {
  char word;      // a: which signals came? k: keep the process; w: watch it; r: do not; g: become the program
  pid_t process;  // of k
};

constexpr std::size_t kMostAtOnce = 32;
struct Pending {
  std::size_t count;
  siginfo_t signals[kMostAtOnce];
};

std::size_t size_of(const Pending& answer) {
  return offsetof(Pending, signals) + answer.count * sizeof(siginfo_t);
}

bool take_one(const sigset_t& set, siginfo_t& signal) {
  const timespec now{};
  while (sigtimedwait(&set, &signal, &now) < 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

// False: the other side has ended.
bool next_question(int line, Question& question) {
  ssize_t length;
  do {
    length = recv(line, &question, sizeof question, 0);
  } while (length < 0 && errno == EINTR);
  return length == sizeof question;
}

void answer_with_pending(int line) {
  sigset_t all;
  sigfillset(&all);
  Pending answer{};
  while (answer.count < kMostAtOnce && take_one(all, answer.signals[answer.count])) ++answer.count;
  send(line, &answer, size_of(answer), MSG_NOSIGNAL);
}

// Also where close_range is unknown or forbidden.
void close_from(unsigned first) {
  if (syscall(SYS_close_range, first, ~0U, 0U) == 0) return;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    const int number = std::atoi(entry->d_name);
    if (number >= static_cast<int>(first) && number != dirfd(folder)) close(number);
  }
  closedir(folder);
}

// False also for a process that has ended; true if it cannot be told.
bool is_stopped(pid_t process) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(process));
  const Descriptor file(open(path, O_RDONLY | O_CLOEXEC));
  char text[512] = {};
  if (!file || read(file.get(), text, sizeof text - 1) <= 0) return kill(process, 0) == 0;
  const char* const end = std::strrchr(text, ')');
  return end != nullptr && std::strlen(end) > 2 && (end[2] == 'T' || end[2] == 't');
}

void end_program(pid_t process, const Descriptor& exact) {
  if (!exact) {
    kill(process, SIGKILL);
    for (int waited = 0; waited < kProgramsEndMs && kill(process, 0) == 0; waited += kLookMs) poll(nullptr, 0, kLookMs);
    return;
  }
  syscall(SYS_pidfd_send_signal, exact.get(), SIGKILL, nullptr, 0U);
  pollfd ended{exact.get(), POLLIN, 0};
  poll(&ended, 1, kProgramsEndMs);
}

[[noreturn]] void keep_until_the_end(int inherited, pid_t waiting, const std::function<void()>& clean_up) {
  // Everything is closed, so that nobody who waits for the end of the caller's pipes waits for this process.
  constexpr int kLine = 0;
  dup2(inherited, kLine);
  close_from(kLine + 1);
  pid_t program = -1;
  Descriptor exact;  // its number cannot come to mean another process
  bool watches = false;
  while (true) {
    pollfd asked{kLine, POLLIN, 0};
    const int events = poll(&asked, 1, watches ? kLookMs : -1);
    if (events < 0) continue;
    if (events == 0) {
      if (!is_stopped(program) && getppid() == waiting) kill(waiting, SIGCONT);
      continue;
    }
    Question question{};
    if (!next_question(kLine, question)) break;
    if (question.word == 'a') answer_with_pending(kLine);
    if (question.word == 'k') {
      program = question.process;
      exact = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, program, 0U)));
      answer_with_pending(kLine);
    }
    if (question.word == 'w') watches = true;
    if (question.word == 'r') watches = false;
  }
  if (program > 0) end_program(program, exact);
  if (clean_up) clean_up();
  _exit(0);
}

template <typename Body>
Witness start(const Body& body) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return {};
  Descriptor own(ends[0]);
  Descriptor other(ends[1]);
  const pid_t child = fork();
  if (child < 0) return {};
  if (child == 0) {
    own = {};
    body(other.get());
  }
  return {child, std::move(own)};
}

}  // namespace

void take_pending(const sigset_t& set, std::vector<siginfo_t>& signals) {
  for (siginfo_t signal{}; take_one(set, signal);) signals.push_back(signal);
}

bool Witness::answered(void* answer, std::size_t bytes) const {
  while (true) {
    pollfd readable{line_.get(), POLLIN, 0};
    const int events = poll(&readable, 1, kLookMs);
    if (events > 0) {
      const ssize_t length = recv(line_.get(), answer, bytes, 0);
      if (length < 0 && errno == EINTR) continue;
      return length > 0;
    }
    // Only that process was stopped, or only this one was continued.
    siginfo_t state{};
    if (waitid(P_PID, static_cast<id_t>(process_), &state, WSTOPPED | WNOHANG) == 0 && state.si_pid == process_) {
      kill(process_, SIGCONT);
    }
  }
}

bool Witness::tell(char word, pid_t process) {
  const Question question{word, process};
  return line_ && send(line_.get(), &question, sizeof question, MSG_NOSIGNAL) == sizeof question;
}

bool Witness::ask(std::vector<siginfo_t>& signals) {
  Pending answer{};
  if (!tell('a') || !answered(&answer, sizeof answer)) {
    line_ = {};
    return false;
  }
  signals.insert(signals.end(), answer.signals, answer.signals + answer.count);
  return true;
}

Witness start_waiting_child(const std::function<int()>& become) {
  return start([&](int line) {
    for (Question question{}; next_question(line, question);) {
      if (question.word == 'a') answer_with_pending(line);
      if (question.word != 'g') continue;
      close(line);
      _exit(become());
    }
    _exit(1);  // killed before the program had begun
  });
}

Keeper::Keeper(const std::function<void()>& clean_up)
    : witness_(start([&, waiting = getpid()](int line) { keep_until_the_end(line, waiting, clean_up); })) {}

Keeper::~Keeper() {
  siginfo_t state{};
  // Otherwise it has ended, and its pid may be another process's.
  const auto process = static_cast<id_t>(witness_.process());
  if (witness_.process() <= 0 || waitid(P_PID, process, &state, WEXITED | WNOHANG | WNOWAIT) != 0) return;
  kill(witness_.process(), SIGKILL);
  while (waitpid(witness_.process(), nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Keeper::keep(pid_t program) {
  std::vector<siginfo_t> none;
  Pending answer{};
  if (witness_.tell('k', program)) witness_.answered(&answer, sizeof answer);
}

}  // namespace rota::tool
