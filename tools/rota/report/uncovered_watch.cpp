#include "tools/rota/report/uncovered_watch.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "tools/rota/report/format.h"
#include "tools/rota/status/uncovered.h"

namespace rota::report {
namespace {

namespace fs = std::filesystem;

// Children of all of a process's threads. Kernels without this file show none.
void add_descendants(pid_t process, std::vector<pid_t>& all) {
  const std::size_t first = all.size();
  std::error_code error;
  const std::string tasks = fmt::format("/proc/{}/task", process);
  for (fs::directory_iterator task(tasks, error), end; !error && task != end; task.increment(error)) {
    std::ifstream children(task->path() / "children");
    for (pid_t child = 0; children >> child;) all.push_back(child);
  }
  const std::size_t last = all.size();
  for (std::size_t child = first; child < last; ++child) add_descendants(all[child], all);
}

}  // namespace

UncoveredWatch::UncoveredWatch() {
  sigset_t every;
  sigset_t before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  try {
    thread_ = std::thread([this] {
      std::unique_lock lock(mutex_);
      while (!changed_.wait_for(lock, kPause, [this] { return over_; })) look();
    });
  } catch (const std::system_error&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

UncoveredWatch::~UncoveredWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void UncoveredWatch::look() {
  std::vector<pid_t> all;
  add_descendants(getpid(), all);
  for (const pid_t process : all) {
    tool::Uncovered found;
    if (!tool::is_uncovered(process, found)) continue;
    if (!said_.insert(fmt::format("{} {}", process, found.command)).second) continue;
    constexpr std::size_t kMost = 100;
    const std::string line =
        fmt::format("rota: {} (pid {}) runs without rota{}: {}; {}\n", printable_beginning(found.command, kMost),
                    process, found.limited ? ", and without its limit" : "", found.why, found.remedy);
    // Standard error may be closed or full: that must not cost the report.
    std::fputs(line.c_str(), stderr);
  }
}

}  // namespace rota::report
