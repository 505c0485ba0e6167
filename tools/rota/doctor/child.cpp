#include "tools/rota/doctor/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <type_traits>

#include "scheduler/base/descriptor.h"
#include "tools/rota/run/launch.h"

namespace rota::doctor {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kReport = 3;  // the descriptor in the child
constexpr std::size_t kMaxReport = std::size_t{4} << 20;
constexpr std::size_t kMaxOutput = std::size_t{16} << 10;  // the end is kept

struct Pipe {
  Descriptor out, in;  // none if the kernel had no more
  Pipe() {
    if (int ends[2]; pipe2(ends, O_CLOEXEC) == 0) {
      out = Descriptor(ends[0]);
      in = Descriptor(ends[1]);
    }
  }
};

// If the process that started this one ignores SIGCHLD, children leave no status. They inherit the original setting.
class ChildrenLeaveStatus {
 public:
  ChildrenLeaveStatus() {
    struct sigaction usual{};
    usual.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &usual, &before_);
  }
  ~ChildrenLeaveStatus() { sigaction(SIGCHLD, &before_, nullptr); }
  ChildrenLeaveStatus(const ChildrenLeaveStatus&) = delete;
  ChildrenLeaveStatus& operator=(const ChildrenLeaveStatus&) = delete;
  void hand_on() const { sigaction(SIGCHLD, &before_, nullptr); }

 private:
  struct sigaction before_{};
};

// In the child, between fork and exec.
[[noreturn]] void become(const ChildCommand& command, pid_t parent, const Pipe& report, const Pipe& output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing that hangs outlives the doctor
  if (getppid() != parent) _exit(1);
  setpgid(0, 0);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  // Out of the way of 0 to 3 first: dup2 onto itself would keep close-on-exec.
  const int report_end = fcntl(report.in.get(), F_DUPFD_CLOEXEC, 10);
  const int output_end = fcntl(output.in.get(), F_DUPFD_CLOEXEC, 10);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(nothing, 0);
  dup2(output_end, 1);
  dup2(output_end, 2);
  dup2(report_end, kReport);
  for (const auto& [name, value] : command.environment) {
    if (value) {
      setenv(name.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }
  std::vector<std::string> arguments = {"rota"};
  arguments.insert(arguments.end(), command.arguments.begin(), command.arguments.end());
  arguments.insert(arguments.end(), {"--report", std::to_string(kReport)});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv("/proc/self/exe", argv.data());
  execv(tool::own_executable().c_str(), argv.data());  // where there is no /proc
  _exit(127);
}

// Reads what is there; false at the end.
bool take(int descriptor, std::string& into, std::size_t most, bool keep_end) {
  char buffer[4096];
  const ssize_t length = read(descriptor, buffer, sizeof buffer);
  if (length < 0) return errno == EINTR || errno == EAGAIN;
  if (length == 0) return false;
  into.append(buffer, static_cast<std::size_t>(length));
  if (into.size() > most) {
    if (keep_end) {
      into.erase(0, into.size() - most);
    } else {
      into.resize(most);
    }
  }
  return true;
}

// Waits for the end of a child that was killed. A child that hangs in a system call of the driver cannot be waited for.
void reap(pid_t child, int& status) {
  const auto deadline = Clock::now() + 2s;
  while (waitpid(child, &status, WNOHANG) == 0 && Clock::now() < deadline) poll(nullptr, 0, 10);
}

template <typename T>
T value_or(const nlohmann::json& object, const char* name, T otherwise) {
  const auto found = object.find(name);
  if (found == object.end()) return otherwise;
  // A fraction is not converted to an integer: most conversions are undefined.
  if (std::is_integral_v<T> && found->is_number_float()) return otherwise;
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception&) {
    return otherwise;
  }
}

std::optional<int> number(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int>();
}

}  // namespace

ChildResult run_child(const ChildCommand& command) {
  ChildResult result;
  Pipe report;
  Pipe output;
  if (!report.out || !output.out) {
    result.end = End::kFailed;
    return result;
  }
  const ChildrenLeaveStatus statuses;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    statuses.hand_on();
    become(command, parent, report, output);
  }
  if (child < 0) {
    result.end = End::kFailed;
    return result;
  }
  report.in = {};
  output.in = {};
  std::string lines;
  int status = 0;
  bool ended = false;
  const auto deadline = Clock::now() + command.limit;
  // Reads until both pipes are closed, or the child has ended and its output is read: a process that it started may
  // keep the pipes open.
  while (report.out || output.out) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left <= 0ms) break;
    pollfd ready[] = {{report.out.get(), POLLIN, 0}, {output.out.get(), POLLIN, 0}};
    const int count = poll(ready, 2, static_cast<int>(ended ? 0 : std::min(left, 100ms).count()));
    if (count == 0 && ended) break;
    if (ready[0].revents != 0 && !take(report.out.get(), lines, kMaxReport, false)) report.out = {};
    if (ready[1].revents != 0 && !take(output.out.get(), result.output, kMaxOutput, true)) output.out = {};
    if (count == 0) ended = waitpid(child, &status, WNOHANG) == child;
  }
  // The child has closed its pipes, so it is about to end; but a driver's exit handlers may hang, too.
  while (!ended && Clock::now() < deadline) {
    ended = waitpid(child, &status, WNOHANG) == child;
    if (!ended) poll(nullptr, 0, 2);
  }
  result.report = merge_report(lines);
  if (!ended) {
    kill(-child, SIGKILL);
    kill(child, SIGKILL);
    reap(child, status);
    result.end = End::kTimedOut;
  } else if (WIFSIGNALED(status)) {
    result.end = End::kCrashed;
    result.detail = WTERMSIG(status);
  } else {
    result.detail = WEXITSTATUS(status);
    result.end = value_or(result.report, "done", false) ? End::kFinished : End::kFailed;
  }
  return result;
}

void Reporter::say(const nlohmann::json& part) const {
  // A GPU's name from the driver may be any bytes.
  const std::string line = part.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::size_t written = 0;
  while (written < line.size()) {
    const ssize_t length = write(descriptor_, line.data() + written, line.size() - written);
    if (length < 0 && errno != EINTR) return;  // the reader has closed the pipe
    if (length > 0) written += static_cast<std::size_t>(length);
  }
}

nlohmann::json merge_report(const std::string& lines) {
  nlohmann::json whole = nlohmann::json::object();
  std::size_t begin = 0;
  for (std::size_t end; (end = lines.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const auto part = nlohmann::json::parse(lines.begin() + static_cast<std::ptrdiff_t>(begin),
                                            lines.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    if (part.is_object()) whole.update(part);
  }
  return whole;
}

std::string last_words(const std::string& output) {
  std::istringstream lines(output);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  }
  constexpr std::size_t kMost = 200;
  if (last.size() > kMost) last.resize(kMost);
  for (char& letter : last) {
    if (static_cast<unsigned char>(letter) < ' ' || letter == 0x7f) letter = ' ';
  }
  while (!last.empty() && last.back() == ' ') last.pop_back();
  return last;
}

ProbeFacts probe_facts(const ChildResult& result, std::chrono::milliseconds limit) {
  ProbeFacts facts;
  const nlohmann::json& said = result.report;
  facts.end = result.end;
  facts.detail = result.detail;
  facts.output = last_words(result.output);
  facts.limit_seconds = std::chrono::duration<double>(limit).count();
  facts.step = value_or<std::string>(said, "step", "its start");
  facts.load_error = value_or<std::string>(said, "load_error", "");
  facts.version = number(said, "version");
  facts.init = number(said, "init");
  facts.count = number(said, "count");
  for (const nlohmann::json& gpu : value_or(said, "gpus", nlohmann::json::array())) {
    if (!gpu.is_object()) continue;
    facts.gpus.push_back({.index = value_or(gpu, "index", 0),
                          .name = value_or<std::string>(gpu, "name", ""),
                          .uuid = value_or<std::string>(gpu, "uuid", ""),
                          .bytes = value_or<std::uint64_t>(gpu, "bytes", 0),
                          .major = value_or(gpu, "major", 0),
                          .minor = value_or(gpu, "minor", 0),
                          .compute_mode = value_or(gpu, "compute_mode", 0),
                          .managed = value_or(gpu, "managed", 0) != 0,
                          .concurrent_managed = value_or(gpu, "concurrent_managed", 0) != 0,
                          .pageable = value_or(gpu, "pageable", 0) != 0,
                          .virtual_memory = value_or(gpu, "virtual_memory", 0) != 0,
                          .memory_pools = value_or(gpu, "memory_pools", 0) != 0});
  }
  if (const auto error = number(said, "nvml")) {
    facts.nvml.asked = true;
    facts.nvml.error = *error;
  }
  facts.nvml.driver_version = value_or<std::string>(said, "nvml_driver_version", "");
  for (const nlohmann::json& gpu : value_or(said, "nvml_gpus", nlohmann::json::array())) {
    if (!gpu.is_object()) continue;
    facts.nvml.gpus.push_back({.uuid = value_or<std::string>(gpu, "uuid", ""),
                               .number = value_or(gpu, "number", 0),
                               .mig_now = value_or(gpu, "mig_now", -1),
                               .mig_later = value_or(gpu, "mig_later", -1)});
    for (GpuFacts& seen : facts.gpus) {
      if (seen.uuid == facts.nvml.gpus.back().uuid) seen.index = facts.nvml.gpus.back().number;
    }
  }
  return facts;
}

TrialFacts trial_facts(const ChildResult& result, bool asked_driver) {
  TrialFacts facts;
  const nlohmann::json& said = result.report;
  facts.end = result.end;
  facts.detail = result.detail;
  facts.step = value_or<std::string>(said, "step", "");
  facts.output = last_words(result.output);
  facts.core_error = value_or<std::string>(said, "core_error", "");
  facts.cudart_error = value_or<std::string>(said, "cudart_error", "");
  facts.nvml_error = value_or<std::string>(said, "nvml_error", "");
  facts.preloaded = value_or(said, "preloaded", false);
  facts.asked_driver = asked_driver;
  if (number(said, "result") == 0) facts.version = number(said, "version");
  constexpr std::string_view kPrefix = "rota: ";
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(kPrefix, 0) == 0) facts.lines.push_back(line.substr(kPrefix.size()));
  }
  // The core logs this if and only if it leaves the calls to the driver (attach.cpp).
  facts.attached = facts.end == End::kFinished && facts.preloaded && facts.core_error.empty();
  for (const std::string& line : facts.lines) {
    if (line.find("goes on without") != std::string::npos) facts.attached = false;
  }
  return facts;
}

}  // namespace rota::doctor
