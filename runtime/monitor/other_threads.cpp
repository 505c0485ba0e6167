#include "runtime/monitor/other_threads.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>

#include "runtime/core/held_signals.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/base/not_cancelled.h"

namespace rota::monitor {

namespace {

// A sample this old proves nothing any more. A judgment.
constexpr std::chrono::seconds kOld{1};

pid_t this_thread() {
  return static_cast<pid_t>(syscall(SYS_gettid));
}

// As its stat file has it: "12 (name) R 1 ...". A thread that has ended does not run.
bool runs(int tasks, const char* thread) {
  const Descriptor file(openat(tasks, fmt::format("{}/stat", thread).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return errno != ENOENT && errno != ESRCH;
  char text[128];
  const ssize_t length = read(file.get(), text, sizeof text);
  const std::string_view line(text, length > 0 ? static_cast<std::size_t>(length) : 0);
  const std::size_t name = line.rfind(')');
  if (name == std::string_view::npos || name + 2 >= line.size()) return false;
  if (line.substr(0, name).ends_with("(rota")) return false;  // the monitor's
  return line[name + 2] == 'R' || line[name + 2] == 'D';
}

}  // namespace

void OtherThreads::begin(std::uint32_t number) {
  const HeldSignals held;
  const std::lock_guard lock(mutex_);
  waiting_[number] = this_thread();
}

void OtherThreads::end(std::uint32_t number) {
  const HeldSignals held;
  const std::lock_guard lock(mutex_);
  waiting_.erase(number);
}

bool OtherThreads::any_runs() const {
  struct Close {
    void operator()(DIR* folder) const { closedir(folder); }
  };
  const std::unique_ptr<DIR, Close> tasks(opendir("/proc/self/task"));
  if (tasks == nullptr) return errno != ENOENT;  // no descriptor is left, for example: unknown
  while (const dirent* entry = readdir(tasks.get())) {
    pid_t thread = 0;
    const char* const end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, thread).ptr != end || thread == 0) continue;
    const bool waits = std::ranges::any_of(waiting_, [&](const auto& each) { return each.second == thread; });
    if (!waits && runs(dirfd(tasks.get()), entry->d_name)) return true;
  }
  return false;
}

bool OtherThreads::sleep() {
  const HeldSignals held;
  const NotCancelled whole;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  const Clock::time_point begun = Clock::now();
  if (lock && begun >= next_) {
    if (begun > next_ + kOld) asleep_ = 0;
    asleep_ = any_runs() ? 0 : std::min(asleep_ + 1, kSamples);
    const Clock::time_point now = Clock::now();
    next_ = now + std::max<Clock::duration>(kBetween, 20 * (now - begun));
  }
  return asleep_ >= kSamples;
}

}  // namespace rota::monitor
