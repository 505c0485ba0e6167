// Finding a rotad, and starting the user's own.
#include "tools/rota/run/daemon.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "scheduler/core/settings.h"
#include "scheduler/protocol/socket_path.h"
#include "tools/rota/status/request.h"

namespace rota::tool {
namespace {

using protocol::SocketCandidate;
using protocol::SocketOwner;
using scheduler::mode_name;
using scheduler::parse_duration;

// How long a user's own rotad outlives its last program: long enough for a shell loop to find it again.
constexpr const char* kIdleExitSeconds = "5";

bool nobody_there(int error) {
  return error == ENOENT || error == ECONNREFUSED || error == ENOTDIR;
}

std::string explain(int error, const std::string& socket) {
  switch (error) {
    case EACCES:
      return fmt::format("you may not talk to the rotad at {} (permission denied): ask who runs it, or set ROTA_SOCKET",
                         socket);
    case EPERM:
      return fmt::format("the folder of {} is not yours alone: remove it, or set ROTA_SOCKET", socket);
    case EPROTOTYPE:
      return fmt::format("what listens at {} is no rotad: set ROTA_SOCKET to another path", socket);
    case ENAMETOOLONG:
      return "ROTA_SOCKET is longer than a socket's path may be (107 bytes)";
    default:
      return fmt::format("cannot talk to a rotad at {}: {}", socket, strerror(error));
  }
}

// Asks the daemon at `descriptor` to stay, and waits for an answer: one that is about to end for want of programs takes
// the connection too, but answers nothing.
bool ask_to_stay(int descriptor, const DaemonRequest& request, Daemon& daemon) {
  protocol::Message stay{.kind = protocol::Kind::kStay};
  if (!send_message(descriptor, stay)) return false;
  const auto status = request_status(descriptor);
  if (!status) return false;
  const auto wanted = request.quantum.empty() ? std::nullopt : parse_duration(request.quantum);
  const bool other_mode = !request.mode.empty() && request.mode != mode_name(status->end.mode);
  const bool other_quantum = wanted && static_cast<std::uint64_t>(wanted->count()) != status->end.quantum_ns;
  if (other_mode || other_quantum) {
    daemon.problem = fmt::format("the rotad at {} runs already, in {} mode with a quantum of {} ms: that holds",
                                 daemon.socket, mode_name(status->end.mode), status->end.quantum_ns / 1e6);
  }
  return true;
}

// Where this user's own daemon would listen. The list is not empty.
SocketCandidate own_place(const protocol::SocketCandidates& candidates) {
  for (std::size_t i = 0; i < candidates.count; ++i) {
    const SocketCandidate& candidate = candidates.list[i];
    if (candidate.owner == SocketOwner::kChosen) return candidate;
    if (candidate.owner != SocketOwner::kUser) continue;
    // XDG_RUNTIME_DIR may name a folder that is not there (su, containers).
    const std::string folder = std::string(candidate.path).substr(0, std::string(candidate.path).rfind('/'));
    const std::string above = folder.substr(0, folder.rfind('/'));
    if (access(above.c_str(), W_OK | X_OK) == 0) return candidate;
  }
  return candidates.list[candidates.count - 1];
}

std::string own_executable_folder() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return ".";
  const std::string whole(path, static_cast<std::size_t>(length));
  return whole.substr(0, whole.rfind('/'));
}

std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::string last;
  while (std::getline(file, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

// Starts rotad and waits until it listens or has ended. It becomes nobody's child: the program that this process turns
// into must not find a child that it never made. Returns whether it listens.
bool spawn(const std::vector<std::string>& arguments, const std::string& log) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return false;
  const pid_t middle = fork();
  if (middle == 0) {
    setsid();  // Ctrl-C in this terminal is not for the daemon
    if (fork() != 0) _exit(0);
    const int nothing = open("/dev/null", O_RDWR);
    const int output = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    dup2(nothing, 0);
    dup2(output >= 0 ? output : nothing, 1);
    dup2(output >= 0 ? output : nothing, 2);
    // The pipe moves out of the way of 3 first, should it be 3 itself: dup2 onto itself would keep close-on-exec.
    const int moved = fcntl(ready[1], F_DUPFD, 10);
    dup2(moved, 3);
    // Nothing else of this terminal's pipes: whoever reads from them waits for their end.
    syscall(SYS_close_range, 4U, ~0U, 0U);
    unsetenv("LD_PRELOAD");
    if (chdir("/") != 0) _exit(127);
    execv(argv[0], argv.data());
    dprintf(2, "rotad: cannot start %s: %s\n", argv[0], strerror(errno));
    _exit(127);
  }
  close(ready[1]);
  if (middle > 0) waitpid(middle, nullptr, 0);
  char answer = 0;
  ssize_t length;
  do {
    length = read(ready[0], &answer, 1);
  } while (length < 0 && errno == EINTR);
  close(ready[0]);
  return length == 1;
}

// One attempt; empty socket and problem: try again.
Daemon start_own(const SocketCandidate& place, const DaemonRequest& request) {
  const std::string socket = place.path;
  const std::string folder = socket.substr(0, socket.rfind('/'));
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return {{}, fmt::format("no rotad runs, and the folder {} cannot be made for one: {}", folder, strerror(errno))};
  }
  if (place.owner == SocketOwner::kUser) {
    if (const int error = protocol::check_private_folder(place.path); error != 0) return {{}, explain(error, socket)};
  }
  // One starts it, the others wait here and then find it.
  const int turn = open((socket + ".start").c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (turn < 0 || flock(turn, LOCK_EX) != 0) {
    const int error = errno;
    if (turn >= 0) close(turn);
    return {{}, fmt::format("no rotad runs, and none can be started at {}: {}", socket, strerror(error))};
  }
  Daemon daemon;
  int descriptor = protocol::connect_socket(place);
  if (descriptor < 0 && nobody_there(-descriptor)) {
    std::vector<std::string> arguments = {
        own_executable_folder() + "/rotad", "--socket", socket, "--idle-exit", kIdleExitSeconds, "--ready-fd", "3"};
    if (!request.mode.empty()) arguments.insert(arguments.end(), {"--mode", request.mode});
    if (!request.quantum.empty()) arguments.insert(arguments.end(), {"--quantum", request.quantum});
    const std::string log = socket + ".log";
    if (!spawn(arguments, log)) {
      const std::string reason = last_line(log);
      // A former one that is just ending still has the lock.
      if (reason.find("is served already") == std::string::npos) {
        daemon.problem = fmt::format("cannot start a rotad at {}: {}", socket, reason.empty() ? "it ended" : reason);
      }
    }
    descriptor = protocol::connect_socket(place);
  }
  close(turn);
  if (descriptor < 0) {
    if (daemon.problem.empty() && !nobody_there(-descriptor)) daemon.problem = explain(-descriptor, socket);
    return daemon;
  }
  daemon = {socket, {}};
  if (!ask_to_stay(descriptor, request, daemon)) daemon = {};
  close(descriptor);
  return daemon;
}

}  // namespace

Daemon find_or_start_daemon(const DaemonRequest& request) {
  using namespace std::chrono_literals;
  // ROTA_SOCKET may be relative; the daemon and the program may work elsewhere.
  if (const char* chosen = getenv("ROTA_SOCKET"); chosen != nullptr && *chosen != '\0' && *chosen != '/') {
    char here[4096];
    if (getcwd(here, sizeof here) != nullptr) setenv("ROTA_SOCKET", fmt::format("{}/{}", here, chosen).c_str(), 1);
  }
  constexpr int kAttempts = 40;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const protocol::SocketSearch search = protocol::find_rotad();
    if (search.descriptor >= 0) {
      Daemon daemon{search.candidate.path, {}};
      const bool stays = ask_to_stay(search.descriptor, request, daemon);
      close(search.descriptor);
      if (stays) return daemon;
    } else if (!nobody_there(search.error)) {
      return {{}, explain(search.error, search.candidate.path)};
    } else {
      const Daemon daemon = start_own(own_place(protocol::socket_candidates()), request);
      if (!daemon.socket.empty() || !daemon.problem.empty()) return daemon;
    }
    std::this_thread::sleep_for(50ms);  // one that is just ending
  }
  return {{}, "no rotad runs, and none can be started: one is there, but answers nothing"};
}

}  // namespace rota::tool
