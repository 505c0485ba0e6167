#include "tools/rota/report/upkeep.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <vector>

#include "runtime/account/format.h"
#include "scheduler/base/descriptor.h"
#include "tools/rota/report/account_file.h"
#include "tools/rota/report/session.h"

namespace rota::report {
namespace {

namespace fs = std::filesystem;

std::int64_t monotonic_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// No process can write the account any more. A zombie does not count as ended: its other threads may run.
bool is_gone(const PersonRecord& person) {
  return start_ticks_of(static_cast<pid_t>(person.pid)) != person.start_ticks;
}

// Whether the process of a file "PID-START[-N].account" is running: one with that number has that start time.
bool is_gone(const std::string& name) {
  PersonRecord person;
  const char* const end = name.data() + name.size();
  const auto [dash, error] = std::from_chars(name.data(), end, person.pid);
  if (error != std::errc() || dash == end || *dash != '-') return false;
  const auto [rest, wrong] = std::from_chars(dash + 1, end, person.start_ticks);
  return wrong == std::errc() && person.start_ticks != 0 && is_gone(person);
}

// A process of another pid namespace has another number there, which says nothing here. A process that descends from
// this rota is in the same namespace.
bool descends_from(const ProcessAccount& process, const std::string& recorder) {
  return std::ranges::any_of(process.ancestors,
                             [&](const PersonRecord& ancestor) { return ancestor.id() == recorder; });
}

// Records that the process, which was killed, was certainly alive then. It cannot write any more.
void set_alive(int file, std::int64_t seen_ns) {
  static_assert(sizeof(account::Word) == sizeof seen_ns);
  std::int64_t ended = 0;
  std::int64_t alive = 0;
  const auto read = [&](std::int64_t& word, std::size_t offset) {
    return pread(file, &word, sizeof word, static_cast<off_t>(offset)) == sizeof word;
  };
  constexpr std::size_t kAlive = offsetof(account::Header, alive_monotonic_ns);
  if (!read(ended, offsetof(account::Header, ended_monotonic_ns)) || !read(alive, kAlive)) return;
  if (ended != 0 || alive >= seen_ns) return;
  // If it fails, the account is as exact as it was.
  [[maybe_unused]] const ssize_t written = pwrite(file, &seen_ns, sizeof seen_ns, kAlive);
}

// Whole pages of zeros become holes. File systems without holes leave the file as it is.
void punch(const Descriptor& file, const struct stat& info) {
  std::array<char, account::kPageBytes> page;
  off_t zeros = 0;  // where they begin
  off_t at = 0;
  const auto end_zeros = [&] {
    return zeros == at || fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, zeros, at - zeros) == 0;
  };
  for (; at + static_cast<off_t>(page.size()) <= info.st_size; at += static_cast<off_t>(page.size())) {
    if (pread(file.get(), page.data(), page.size(), at) != static_cast<ssize_t>(page.size())) return;
    if (std::ranges::all_of(page, [](char byte) { return byte == 0; })) continue;
    if (!end_zeros()) return;
    zeros = at + static_cast<off_t>(page.size());
  }
  end_zeros();
}

}  // namespace

void Upkeep::sweep() {
  std::error_code error;
  const fs::path processes = fs::path(folder_) / kProcessFolder;
  for (fs::directory_iterator entry(processes, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (done_.contains(name)) continue;
    if (!is_gone(name)) {
      seen_[name] = monotonic_ns();
      continue;
    }
    done_.insert(name);
    const std::string path = entry->path().string();
    const auto process = read_account(path);
    if (!process || !is_gone(process->self) || !descends_from(*process, recorder_)) continue;
    const Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
    struct stat info{};
    if (!file || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (static_cast<std::uint64_t>(info.st_size) > account::kFileBytes) continue;
    if (const auto seen = seen_.find(name); seen != seen_.end()) {
      set_alive(file.get(), seen->second);
      seen_.erase(seen);
    }
    punch(file, info);
  }
}

UpkeepWhileRunning::UpkeepWhileRunning(std::string folder, std::string recorder)
    : upkeep_(std::move(folder), std::move(recorder)) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] {
      std::unique_lock lock(mutex_);
      while (!changed_.wait_for(lock, std::chrono::seconds(1), [this] { return over_; })) upkeep_.sweep();
    });
  } catch (const std::system_error&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

UpkeepWhileRunning::~UpkeepWhileRunning() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  upkeep_.sweep();
}

}  // namespace rota::report
