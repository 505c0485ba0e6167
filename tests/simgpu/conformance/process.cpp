#include "tests/simgpu/conformance/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program

namespace conformance {
namespace {

std::vector<std::string> merged_environment(const std::vector<std::string>& changes) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view name(*entry, strcspn(*entry, "="));
    bool replaced = false;
    for (const std::string& change : changes) replaced |= change.substr(0, change.find('=')) == name;
    if (!replaced) merged.emplace_back(*entry);
  }
  merged.insert(merged.end(), changes.begin(), changes.end());
  return merged;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

}  // namespace

Ended run_process(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                  const std::string& output, std::chrono::seconds limit) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);

  std::vector<std::string> merged = merged_environment(environment);
  pid_t pid = -1;
  int failed =
      posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, pointers(arguments).data(), pointers(merged).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0) return {false, 127, 0};

  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  bool timed_out = false;
  std::thread watch([&] {
    std::unique_lock lock(mutex);
    if (changed.wait_for(lock, limit, [&] { return ended; })) return;
    timed_out = true;
    kill(-pid, SIGKILL);
  });
  siginfo_t information;
  while (waitid(P_PID, static_cast<id_t>(pid), &information, WEXITED | WNOWAIT) != 0) {
  }
  {
    std::lock_guard lock(mutex);
    ended = true;
  }
  changed.notify_all();
  watch.join();
  kill(-pid, SIGKILL);  // what the rule left behind; its number is not free before waitpid
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) return {timed_out, 0, WTERMSIG(status)};
  return {timed_out, WEXITSTATUS(status), 0};
}

}  // namespace conformance
