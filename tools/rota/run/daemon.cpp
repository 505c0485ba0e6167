// Finding a rotad, and starting the user's own.
#include "tools/rota/run/daemon.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#include "scheduler/address/socket_path.h"
#include "scheduler/address/started_by_run.h"
#include "scheduler/address/unresponsive.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/core/settings.h"
#include "tools/rota/run/fresh_start.h"
#include "tools/rota/run/launch.h"
#include "tools/rota/status/request.h"

namespace rota::tool {
namespace {

using protocol::nobody_there;
using protocol::SocketCandidate;
using protocol::SocketOwner;
using scheduler::mode_name;
using scheduler::parse_quantum;

// How long a user's own rotad outlives its last program: long enough for a shell loop to find it again.
constexpr const char* kIdleExitSeconds = "5";

// Where rotad says that it listens.
constexpr int kReadyDescriptor = 3;

// How long a rotad may take to listen, and another `rota run` to start one: both take milliseconds.
constexpr auto kPatience = std::chrono::seconds(5);

// How long an existing rotad may take to answer before the program starts without its answer. Together with the time
// for which the program itself waits then (runtime/turn), less than five seconds.
constexpr auto kSilence = std::chrono::milliseconds(2500);

std::string explain(int error, const std::string& socket) {
  switch (error) {
    case EACCES:
      return fmt::format(
          "you may not connect to the rotad at {} (permission denied): ask who runs it for access, or set ROTA_SOCKET",
          socket);
    case EPERM:
      return fmt::format("another user owns the folder of {} or can write to it: remove it, or set ROTA_SOCKET",
                         socket);
    case EPROTOTYPE:
      return fmt::format("the process that listens at {} is not rotad: set ROTA_SOCKET to another path", socket);
    case ETIMEDOUT:  // so many already wait to be accepted
      return protocol::unresponsive_text(socket, {});
    case ENAMETOOLONG:
      return "ROTA_SOCKET is longer than a path may be (4095 bytes)";
    default:
      return fmt::format("cannot talk to a rotad at {}: {}", socket, strerror(error));
  }
}

// Asks the daemon at `descriptor` to stay, and waits for an answer: an idle daemon that is about to exit accepts the
// connection, too, but does not answer.
enum class Stays { kYes, kGone, kSilent };
Stays ask_to_stay(int descriptor, const DaemonRequest& request, Daemon& daemon) {
  protocol::Message stay{.kind = protocol::Kind::kStay};
  if (!send_message(descriptor, stay)) return Stays::kGone;
  const Answer answer = ask_status(descriptor, kSilence);
  if (answer.silent) {
    // It has received the request, and serves the program as soon as it continues.
    const protocol::Listener rotad = protocol::listener_of(descriptor);
    daemon.problem = unresponsive_text(daemon.socket, rotad) + "; until it answers the program does not take turns";
    daemon.silent = true;
    setenv(protocol::kSilentRotad, std::to_string(rotad.pid).c_str(), 1);
    return Stays::kSilent;
  }
  const std::optional<Status>& status = answer.status;
  if (!status) return Stays::kGone;
  daemon.chooses = status->daemon.chooses != 0;
  daemon.gpus = status->daemon.gpus;
  const auto wanted = request.quantum.empty() ? std::nullopt : parse_quantum(request.quantum);
  const bool other_mode = !request.mode.empty() && request.mode != mode_name(status->daemon.mode);
  const bool other_quantum = wanted && static_cast<std::uint64_t>(wanted->count()) != status->daemon.quantum_ns;
  if (other_mode || other_quantum) {
    daemon.problem = fmt::format(
        "the rotad at {} is already running, in {} mode with quantum {}: it keeps these; change them with `rota "
        "control`",
        daemon.socket, mode_name(status->daemon.mode),
        scheduler::quantum_text(std::chrono::nanoseconds(status->daemon.quantum_ns)));
  }
  return Stays::kYes;
}

std::string own_executable_folder() {
  const std::string path = own_executable();
  return path.empty() ? "." : path.substr(0, path.rfind('/'));
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

// Why a rotad has ended without a line in its log.
std::string why_without_log() {
  rlimit size{};
  const bool is_limited = getrlimit(RLIMIT_FSIZE, &size) == 0 && size.rlim_cur != RLIM_INFINITY;
  return is_limited ? fmt::format("it ended, perhaps since no file here may exceed {} bytes (ulimit -f)", size.rlim_cur)
                    : "it ended";
}

// What became of a rotad that was started.
struct Started {
  enum class Result { kListens, kEnded, kSilent } result;
  std::string kept;     // the limits of its starter that it could not change
  std::string problem;  // kEnded: why it could not even be started; empty if its log says why it ended
};

// In the process that becomes rotad. Does not return; reports failures on standard error, which is the log.
[[noreturn]] void become_rotad(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                               const std::string& log, int ready) {
  std::vector<char*> argv;
  std::vector<char*> envp;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  for (const std::string& variable : environment) envp.push_back(const_cast<char*>(variable.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const Kept kept = start_afresh();
  // Nothing else stays open: readers of inherited pipes wait for end of file, and inherited locks are held.
  if (ready != kReadyDescriptor) {
    dup2(ready, kReadyDescriptor);
  } else {
    fcntl(ready, F_SETFD, 0);
  }
  close_descriptors_from(kReadyDescriptor + 1);
  for (int number = 0; number < kReadyDescriptor; ++number) close(number);
  open("/dev/null", O_RDWR);  // 0: the lowest that is free
  if (open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600) < 0) dup2(0, 1);
  dup2(1, 2);
  signal(SIGXFSZ, SIG_IGN);  // as rotad itself does: where no file may grow, these lines are lost, and nothing else
  if (!kept.limits.empty()) {
    dprintf(2, "rotad: warning: limited to %s, as the program was that started it: only root can raise that\n",
            kept.limits.c_str());
    const std::string line = kept.limits + "\n";
    if (write(kReadyDescriptor, line.data(), line.size()) < 0) _exit(127);  // nobody waits for it
  }
  if (!kept.pace.empty()) {
    dprintf(2, "rotad: info: keeps %s of the program that started it: only root can change that\n", kept.pace.c_str());
  }
  execve(argv[0], argv.data(), envp.data());
  dprintf(2, "rotad: cannot start %s: %s\n", argv[0], strerror(errno));
  _exit(127);
}

// Starts rotad and waits until it listens or has ended. It is detached: the program that this process turns into must
// not find a child that it never created.
Started spawn(const std::vector<std::string>& arguments, const std::string& log) {
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return {Started::Result::kEnded, {}, strerror(errno)};
  const Descriptor heard(ready[0]);
  Descriptor told(ready[1]);
  const std::vector<std::string> environment = daemon_environment(environ);
  const pid_t middle = fork();
  if (middle == 0) {
    setsid();  // so that the starter's terminal does not reach the child before it has its own session
    if (fork() == 0) become_rotad(arguments, environment, log, told.get());
    _exit(0);
  }
  told = {};
  if (middle < 0) return {Started::Result::kEnded, {}, strerror(errno)};
  while (waitpid(middle, nullptr, 0) < 0 && errno == EINTR) {
  }
  // At most one line from become_rotad(), then "ready".
  std::string said;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    pollfd listens{heard.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    const int result = poll(&listens, 1, std::max(0, static_cast<int>(left.count())));
    if (result < 0 && errno == EINTR) continue;
    char bytes[256];
    const ssize_t length = result > 0 ? read(heard.get(), bytes, sizeof bytes) : 0;
    if (length <= 0) return {result > 0 ? Started::Result::kEnded : Started::Result::kSilent, {}, {}};
    said.append(bytes, static_cast<std::size_t>(length));
    constexpr std::string_view kReady = "ready\n";
    if (!said.ends_with(kReady)) continue;
    said.resize(said.size() - kReady.size());
    return {Started::Result::kListens, said.substr(0, said.find('\n')), {}};
  }
}

// Only one process at a time starts a rotad at a place; the others wait here and then find it. The file names the
// process whose turn it is.
class StartersTurn {
 public:
  explicit StartersTurn(const std::string& socket) : path_(socket + ".start") {
    const auto failed = [&] {
      problem_ = fmt::format("no rotad is running, and none can be started at {}: {}", socket, strerror(errno));
    };
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (true) {
      if (!file_ || !still_there()) {
        file_ = Descriptor(open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (!file_) {
          failed();
          return;
        }
      }
      if (flock(file_.get(), LOCK_EX | LOCK_NB) == 0) {
        if (still_there()) break;  // otherwise the previous process has removed the file
        file_ = {};
        continue;
      }
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) {
        failed();
        return;
      }
      if (std::chrono::steady_clock::now() >= until) {
        problem_ = fmt::format("{} has been starting a rotad at {} for over {} s: end it, or set ROTA_SOCKET", owner(),
                               socket, kPatience.count());
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const std::string line = fmt::format("{}\n", getpid());
    // Only for the message above: a failed write does not matter.
    if (ftruncate(file_.get(), 0) != 0 || pwrite(file_.get(), line.data(), line.size(), 0) < 0) return;
  }

  ~StartersTurn() {
    if (file_ && problem_.empty() && still_there()) unlink(path_.c_str());
  }
  StartersTurn(const StartersTurn&) = delete;
  StartersTurn& operator=(const StartersTurn&) = delete;

  // One line that says why it is not this process's turn; empty: it is.
  const std::string& problem() const { return problem_; }

 private:
  std::string owner() const {
    char text[16] = {};
    const ssize_t length = pread(file_.get(), text, sizeof text - 1, 0);
    int pid = 0;
    const auto [end, error] = std::from_chars(text, text + std::max<ssize_t>(length, 0), pid);
    return error == std::errc{} ? fmt::format("another `rota run` (pid {})", pid) : "another `rota run`";
  }

  // Whether the file still has its name.
  bool still_there() const {
    struct stat named;
    struct stat opened;
    return lstat(path_.c_str(), &named) == 0 && fstat(file_.get(), &opened) == 0 && named.st_dev == opened.st_dev &&
           named.st_ino == opened.st_ino;
  }

  std::string path_;
  Descriptor file_;
  std::string problem_;
};

// Whether another `rota run` of this user's has started the rotad at the other end under so low a limit that later
// programs get no turns from it, and this process can start one that may have enough.
bool is_cramped(int descriptor) {
  const protocol::Listener rotad = protocol::listener_of(descriptor);
  rlimit its{};
  rlimit own{};
  if (rotad.pid <= 0 || rotad.uid != geteuid() || protocol::stopped_state(rotad.pid) != 0) return false;
  if (prlimit(rotad.pid, RLIMIT_NOFILE, nullptr, &its) != 0 || its.rlim_cur >= kEnoughDescriptors) return false;
  if (getrlimit(RLIMIT_NOFILE, &own) != 0 || own.rlim_max < kEnoughDescriptors) return false;
  std::istringstream arguments(protocol::command_line_of(rotad.pid));
  for (std::string argument; std::getline(arguments, argument, '\0');) {
    if (argument == protocol::kReadyOption) return true;
  }
  return false;
}

// Ends it, and waits until its place is free. The programs that it serves move over to the next one.
void make_way(const SocketCandidate& place, const Descriptor& rotad) {
  kill(protocol::listener_of(rotad.get()).pid, SIGTERM);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < until) {
    if (!Descriptor(protocol::connect_socket(place))) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// One attempt; empty socket and problem: try again.
Daemon start_own(const SocketCandidate& place, const DaemonRequest& request) {
  const std::string socket = place.path;
  const std::string folder = socket.substr(0, socket.rfind('/'));
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return {
        {},
        fmt::format("no rotad is running, and the folder {} cannot be created for one: {}", folder, strerror(errno))};
  }
  // Another user may have created it first: then this user cannot use it, and the next attempt looks for another place.
  if (place.owner == SocketOwner::kUser && protocol::check_private_folder(place.path) != 0) return {};
  const StartersTurn turn(socket);
  if (!turn.problem().empty()) return {{}, turn.problem()};
  Daemon daemon;
  std::string kept;
  int connected = protocol::connect_socket(place);
  if (connected >= 0 && is_cramped(connected)) {
    make_way(place, Descriptor(connected));
    connected = protocol::connect_socket(place);
  }
  if (connected < 0 && nobody_there(-connected)) {
    std::vector<std::string> arguments = {
        own_executable_folder() + "/rotad", "--socket", socket, "--idle-exit", kIdleExitSeconds, protocol::kReadyOption,
        std::to_string(kReadyDescriptor)};
    if (!request.mode.empty()) arguments.insert(arguments.end(), {"--mode", request.mode});
    if (!request.quantum.empty()) arguments.insert(arguments.end(), {"--quantum", request.quantum});
    const std::string log = socket + ".log";
    const Started started = spawn(arguments, log);
    if (started.result == Started::Result::kSilent) {
      return {{},
              fmt::format("cannot start a rotad at {}: it is not listening after {} s; its log is {}", socket,
                          kPatience.count(), log)};
    }
    if (started.result == Started::Result::kEnded) {
      const std::string reason = started.problem.empty() ? last_line(log) : started.problem;
      // A previous rotad that is just exiting still has the lock.
      if (reason.find("is already served") == std::string::npos) {
        daemon.problem =
            fmt::format("cannot start a rotad at {}: {}", socket, reason.empty() ? why_without_log() : reason);
      }
    }
    kept = started.kept;
    connected = protocol::connect_socket(place);
  }
  const Descriptor rotad(connected);
  if (!rotad) {
    if (daemon.problem.empty() && !nobody_there(-connected)) daemon.problem = explain(-connected, socket);
    return daemon;
  }
  daemon = {socket, {}};
  if (ask_to_stay(rotad.get(), request, daemon) == Stays::kGone) return {};
  if (!kept.empty() && daemon.problem.empty()) {
    daemon.problem = fmt::format(
        "rotad serves all of your programs, and only root could raise what this one is limited to: {}; later ones may "
        "get no turns until one starts where the limits are higher",
        kept);
  }
  return daemon;
}

// Adds the places that were skipped to the other problems.
Daemon also_skipped(const protocol::SocketSearch& search, Daemon daemon) {
  if (search.skipped_count == 0) return daemon;
  daemon.problem += (daemon.problem.empty() ? "" : "; ") + skipped_text(search);
  return daemon;
}

}  // namespace

Daemon find_or_start_daemon(const DaemonRequest& request) {
  using namespace std::chrono_literals;
  unsetenv(protocol::kSilentRotad);  // of an outer `rota run`
  // They may be relative; the daemon and the program may have other working directories.
  for (const char* const place : {"ROTA_SOCKET", "ROTA_LOCK_DIRECTORY"}) {
    const char* const chosen = getenv(place);
    char here[4096];
    if (chosen == nullptr || *chosen == '\0' || *chosen == '/' || getcwd(here, sizeof here) == nullptr) continue;
    setenv(place, fmt::format("{}/{}", here, chosen).c_str(), 1);
  }
  constexpr int kAttempts = 40;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const protocol::SocketSearch search = protocol::find_rotad();
    if (const Descriptor rotad(search.descriptor); rotad) {
      if (is_cramped(rotad.get())) {
        const Daemon daemon = start_own(search.candidate, request);
        if (!daemon.socket.empty() || !daemon.problem.empty()) return also_skipped(search, daemon);
        continue;
      }
      Daemon daemon{search.candidate.path, {}};
      if (ask_to_stay(rotad.get(), request, daemon) != Stays::kGone) return also_skipped(search, daemon);
    } else if (!nobody_there(search.error)) {
      return {{}, explain(search.error, search.candidate.path)};
    } else {
      const protocol::SocketCandidates candidates = protocol::socket_candidates();
      const SocketCandidate* place = protocol::own_place(candidates);
      if (place == nullptr) {
        std::string why = skipped_text(search);
        for (std::size_t i = 0; why.empty() && i < candidates.count; ++i) {
          if (candidates.list[i].owner == protocol::SocketOwner::kUser)
            why = std::string(candidates.list[i].path) + " cannot be created";
        }
        return {{},
                fmt::format(
                    "no rotad is running, and there is no place for one: {}; set ROTA_SOCKET to a path in a folder of "
                    "your own that can be written to",
                    why)};
      }
      const Daemon daemon = start_own(*place, request);
      if (!daemon.socket.empty() || !daemon.problem.empty()) return also_skipped(search, daemon);
    }
    std::this_thread::sleep_for(50ms);  // one that is just exiting
  }
  return {{}, "no rotad can be started: there is one already, which hangs up"};
}

}  // namespace rota::tool
