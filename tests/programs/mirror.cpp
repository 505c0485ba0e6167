// Says what it was given: signals, descriptors, limits and the like, to compare a program that a command of rota wraps
// with one that runs natively. It makes no CUDA call.
//   mirror FILE exit N      ends with this exit code
//   mirror FILE die N       ends by this signal
//   mirror FILE signals     writes each signal that it gets, until there is a file FILE.end
//   mirror FILE tells N     sends this signal to its parent
//   mirror FILE waits       until a signal ends it
//   mirror FILE reads       a line from standard input
// What it was given is in FILE before it says "ready PID" there, one line for each thing.
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {

std::string file;

void say(const std::string& line) {
  const int output = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string whole = line + "\n";
  if (write(output, whole.data(), whole.size()) < 0) _exit(99);
  close(output);
}

std::string descriptors() {
  std::map<int, std::string> open_ones;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    const int number = std::atoi(entry->d_name);
    if (entry->d_name[0] == '.' || number == dirfd(folder)) continue;
    char target[4096] = {};
    if (readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1) < 0) continue;
    open_ones[number] = std::string(target) + " " + std::to_string(fcntl(number, F_GETFL));
  }
  closedir(folder);
  std::string all;
  for (const auto& [number, target] : open_ones) all += std::to_string(number) + "=" + target + "; ";
  return all;
}

std::string status() {
  std::string lines;
  FILE* const input = std::fopen("/proc/self/status", "re");
  char line[512];
  while (std::fgets(line, sizeof line, input) != nullptr) {
    for (const char* name : {"Umask", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "CapEff",
                             "Groups", "Cpus_allowed_list"}) {
      const std::size_t length = std::strlen(name);
      if (std::strncmp(line, name, length) == 0 && line[length] == ':') lines += line;
    }
  }
  std::fclose(input);
  return lines.substr(0, lines.size() - 1);
}

std::string text_of(const char* path) {
  char text[64] = {};
  FILE* const input = std::fopen(path, "re");
  if (input == nullptr || std::fgets(text, sizeof text, input) == nullptr) return "?";
  std::fclose(input);
  return std::string(text, std::strcspn(text, "\n"));
}

void say_what_was_given() {
  const std::string all = descriptors();  // before any is opened
  say("descriptors: " + all);
  say(status());
  for (int which = 0; which < RLIMIT_NLIMITS; ++which) {
    rlimit limit{};
    getrlimit(static_cast<__rlimit_resource>(which), &limit);
    say("limit " + std::to_string(which) + ": " + std::to_string(limit.rlim_cur) + " " +
        std::to_string(limit.rlim_max));
  }
  char folder[4096] = {};
  say(std::string("folder: ") + (getcwd(folder, sizeof folder) != nullptr ? folder : "?"));
  say("nice: " + std::to_string(getpriority(PRIO_PROCESS, 0)));
  say("scheduler: " + std::to_string(sched_getscheduler(0)));
  say("oom_score_adj: " + text_of("/proc/self/oom_score_adj"));
  int signal = -1;
  prctl(PR_GET_PDEATHSIG, &signal);
  int adopts = -1;
  prctl(PR_GET_CHILD_SUBREAPER, &adopts);
  say("parent's death: " + std::to_string(signal) + ", adopts: " + std::to_string(adopts) +
      ", dumpable: " + std::to_string(prctl(PR_GET_DUMPABLE)));
  const pid_t child = waitpid(-1, nullptr, WNOHANG);
  say(std::string("children: ") + (child == -1 && errno == ECHILD ? "none" : "some"));
  say("group: " + std::to_string(getpgrp()));
  say("session: " + std::to_string(getsid(0)));
}

int take_signals() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  say("ready " + std::to_string(getpid()));
  const timespec moment{.tv_sec = 0, .tv_nsec = 10'000'000};
  while (true) {
    siginfo_t info{};
    const bool is_over = access((file + ".end").c_str(), F_OK) == 0;
    if (sigtimedwait(&all, &info, &moment) < 0) {
      if (is_over) return 0;
      continue;
    }
    say("signal " + std::to_string(info.si_signo) +
        (info.si_code == SI_QUEUE
             ? " value " + std::to_string(info.si_value.sival_int) + " from " + std::to_string(info.si_pid)
             : ""));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 98;
  file = argv[1];
  const std::string what = argv[2];
  const int number = argc > 3 ? std::atoi(argv[3]) : 0;
  say_what_was_given();
  if (what == "signals") return take_signals();
  if (what == "exit") return number;
  if (what == "die") {
    signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    raise(number);
  }
  if (what == "tells") return kill(getppid(), number) == 0 ? 0 : 97;
  say("ready " + std::to_string(getpid()));
  if (what == "reads") {
    char line[64] = {};
    if (read(STDIN_FILENO, line, sizeof line - 1) > 0) say("read " + std::string(line, std::strcspn(line, "\n")));
    return 0;
  }
  while (true) pause();
}
