#include "tools/rota/run/fresh_start.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string_view>

#include "scheduler/address/rotad_environment.h"
#include "scheduler/base/byte_text.h"

namespace rota::tool {
namespace {

// How many descriptors a table may have by default (fs.nr_open).
constexpr rlim_t kMostDescriptors = rlim_t{1} << 20;
// With lower limits rotad cannot serve everybody. Estimates: several times the memory that it maps at its start, and
// the size of its log.
constexpr rlim_t kEnoughMemory = rlim_t{1} << 30;
constexpr rlim_t kEnoughFile = rlim_t{1} << 20;

// The kernel's own value, in nanoseconds.
constexpr unsigned long kUsualTimerSlack = 50'000;

bool begins(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Those of LD_LIBRARY_PATH's folders that have the library that rotad loads.
std::string folders_with_nvml(std::string_view path) {
  std::string found;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find_first_of(":;"), path.size());
    const std::string folder(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
    // A relative folder would be searched for in rotad's working directory.
    if (folder.empty() || folder.front() != '/') continue;
    if (access((folder + "/libnvidia-ml.so.1").c_str(), R_OK) != 0) continue;
    found += (found.empty() ? "" : ":") + folder;
  }
  return found;
}

// Raises a limit as far as this process may: root to `most`, others to the hard limit.
rlimit raise_limit(__rlimit_resource_t which, rlim_t most = RLIM_INFINITY) {
  rlimit limit{};
  if (getrlimit(which, &limit) != 0) return {RLIM_INFINITY, RLIM_INFINITY};
  if (limit.rlim_max < most) {
    const rlimit wanted{most, most};
    if (setrlimit(which, &wanted) == 0) return wanted;
  }
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit wanted{limit.rlim_max, limit.rlim_max};
    if (setrlimit(which, &wanted) == 0) return wanted;
  }
  return limit;
}

std::string raise_limits() {
  std::string low;
  const auto keeps = [&low](const std::string& what) { low += (low.empty() ? "" : ", ") + what; };
  const rlimit files = raise_limit(RLIMIT_NOFILE, kMostDescriptors);
  if (files.rlim_cur < kEnoughDescriptors) keeps(fmt::format("{} open files", files.rlim_cur));
  for (const auto& [which, what] : {std::pair{RLIMIT_AS, "memory"}, std::pair{RLIMIT_DATA, "data"}}) {
    const rlimit memory = raise_limit(which);
    if (memory.rlim_cur < kEnoughMemory) keeps(fmt::format("{} of {}", bytes_text(memory.rlim_cur), what));
  }
  const rlimit written = raise_limit(RLIMIT_FSIZE);
  if (written.rlim_cur < kEnoughFile) keeps(fmt::format("files of {} bytes at most", written.rlim_cur));
  const rlimit time = raise_limit(RLIMIT_CPU);
  if (time.rlim_cur != RLIM_INFINITY) keeps(fmt::format("{} s of processor time", time.rlim_cur));
  for (const auto which : {RLIMIT_NPROC, RLIMIT_MEMLOCK, RLIMIT_SIGPENDING, RLIMIT_RSS}) raise_limit(which);
  // The usual limits: an unlimited stack changes where everything is mapped, and nobody looks for a core file in /.
  rlimit stack{};
  constexpr rlim_t kUsualStack = 8 << 20;
  if (getrlimit(RLIMIT_STACK, &stack) == 0) {
    stack.rlim_cur = std::min(stack.rlim_max, kUsualStack);
    setrlimit(RLIMIT_STACK, &stack);
  }
  rlimit core{};
  if (getrlimit(RLIMIT_CORE, &core) == 0) {
    core.rlim_cur = 0;
    setrlimit(RLIMIT_CORE, &core);
  }
  return low;
}

// Sets the scheduling class, priorities, CPUs, and how likely the process is to be killed when memory is short.
std::string usual_pace() {
  std::string kept;
  const auto keeps = [&kept](const std::string& what) { kept += (kept.empty() ? "" : ", ") + what; };
  const sched_param usual{};
  if (sched_setscheduler(0, SCHED_OTHER, &usual) != 0) keeps("its scheduling class");
  if (setpriority(PRIO_PROCESS, 0, 0) != 0) keeps(fmt::format("nice {}", getpriority(PRIO_PROCESS, 0)));
  constexpr int kProcess = 1;  // IOPRIO_WHO_PROCESS
  syscall(SYS_ioprio_set, kProcess, 0, 0);
  // The kernel keeps only those in the process's cpuset.
  std::array<unsigned long, 128> all_cpus;
  all_cpus.fill(~0UL);
  syscall(SYS_sched_setaffinity, 0, sizeof all_cpus, all_cpus.data());
  constexpr int kDefaultMemoryPolicy = 0;  // MPOL_DEFAULT
  syscall(SYS_set_mempolicy, kDefaultMemoryPolicy, nullptr, 0UL);
  prctl(PR_SET_TIMERSLACK, kUsualTimerSlack);
  const char* const score_file = "/proc/self/oom_score_adj";
  int score = 0;
  std::ifstream(score_file) >> score;
  if (score != 0) {
    std::ofstream file(score_file);
    file << 0 << std::flush;
    if (!file) keeps(fmt::format("an oom_score_adj of {}", score));
  }
  return kept;
}

void usual_signals() {
  struct sigaction usual{};
  usual.sa_handler = SIG_DFL;
  for (int number = 1; number <= SIGRTMAX; ++number) sigaction(number, &usual, nullptr);
  // Its starter may have blocked signals to take them one by one; the daemon would get none of them.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace

std::vector<std::string> daemon_environment(char* const* inherited) {
  std::vector<std::string> kept;
  for (; *inherited != nullptr; ++inherited) {
    const std::string_view entry = *inherited;
    constexpr std::string_view kLibraries = "LD_LIBRARY_PATH=";
    if (begins(entry, kLibraries)) {
      const std::string folders = folders_with_nvml(entry.substr(kLibraries.size()));
      if (!folders.empty()) kept.push_back(std::string(kLibraries) + folders);
      continue;
    }
    if (protocol::is_for_rotad(entry)) kept.emplace_back(entry);
  }
  return kept;
}

void close_descriptors_from(int first) {
  if (syscall(SYS_close_range, static_cast<unsigned>(first), ~0U, 0U) == 0) return;
  if (DIR* const open_ones = opendir("/proc/self/fd")) {
    // Collected first: closing while reading the folder may skip some.
    std::vector<int> numbers;
    while (const dirent* const entry = readdir(open_ones)) {
      const std::string_view name = entry->d_name;
      int number = -1;
      std::from_chars(name.data(), name.data() + name.size(), number);
      if (number >= first && number != dirfd(open_ones)) numbers.push_back(number);
    }
    closedir(open_ones);
    for (const int number : numbers) close(number);
    return;
  }
  for (int number = first; number < static_cast<int>(kMostDescriptors); ++number) close(number);
}

Kept start_afresh() {
  setsid();  // Ctrl-C in this terminal is not for the daemon
  usual_signals();
  personality(PER_LINUX);
  umask(022);
  if (chdir("/") != 0) _exit(127);
  return {raise_limits(), usual_pace()};
}

}  // namespace rota::tool
