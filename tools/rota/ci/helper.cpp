#include "tools/rota/ci/helper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "scheduler/base/descriptor.h"

namespace rota::ci {
namespace {

// Never freed: threads that wait for helpers may outlive main().
struct Helpers {
  std::mutex mutex;
  std::set<pid_t> groups;
};
Helpers& helpers() {
  static auto* const all = new Helpers;
  return *all;
}

[[noreturn]] void become(const std::vector<std::string>& command, pid_t rig, const std::string& folder, int output) {
  setpgid(0, 0);
  // The helper ends with the rig, also if that is killed. It must not block signals as the thread does that started it.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != rig) _exit(1);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int nothing = open("/dev/null", O_RDWR);
  if (!folder.empty() && chdir(folder.c_str()) != 0) _exit(126);
  if (dup2(nothing, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 || dup2(nothing, STDERR_FILENO) < 0) {
    _exit(126);
  }
  for (const char* name : {"LD_PRELOAD", "ROTA_REPORT"}) unsetenv(name);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

}  // namespace

Result<HelperOutput> run_helper(const std::vector<std::string>& command, const std::string& folder,
                                std::chrono::steady_clock::time_point until, std::size_t most_bytes) {
  using namespace std::chrono_literals;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return Error{fmt::format("no pipe for {}: {}", command.front(), std::strerror(errno))};
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  pid_t child = -1;
  {
    // Under the lock, so that is_helper() is true from the process's first moment on.
    const std::lock_guard lock(helpers().mutex);
    const pid_t rig = getpid();
    child = fork();
    if (child == 0) become(command, rig, folder, writing.get());
    if (child > 0) {
      setpgid(child, child);  // here and in the child: whichever is first
      helpers().groups.insert(child);
    }
  }
  writing = Descriptor();
  if (child < 0) return Error{fmt::format("{} cannot be started: {}", command.front(), std::strerror(errno))};
  HelperOutput output;
  while (!output.ended && output.text.size() < most_bytes) {
    const auto left = until - std::chrono::steady_clock::now();
    pollfd readable{reading.get(), POLLIN, 0};
    if (left <= 0s || poll(&readable, 1, static_cast<int>(left / 1ms) + 1) == 0) break;
    char buffer[65536];
    const ssize_t bytes = read(reading.get(), buffer, sizeof buffer);
    if (bytes < 0 && errno == EINTR) continue;
    output.ended = bytes <= 0;
    if (bytes > 0) output.text.append(buffer, static_cast<std::size_t>(bytes));
  }
  kill(-child, SIGKILL);
  int status = 0;
  // The main thread may have reaped it already, as it does any child of this process.
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  output.missing = WIFEXITED(status) && WEXITSTATUS(status) == 127;
  const std::lock_guard lock(helpers().mutex);
  helpers().groups.erase(child);
  return output;
}

bool is_helper(pid_t process) {
  const std::lock_guard lock(helpers().mutex);
  return helpers().groups.contains(getpgid(process));
}

void end_helpers() {
  const std::lock_guard lock(helpers().mutex);
  for (const pid_t group : helpers().groups) kill(-group, SIGKILL);
}

}  // namespace rota::ci
