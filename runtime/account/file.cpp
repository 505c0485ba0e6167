#include "runtime/account/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "runtime/core/files.h"
#include "runtime/preload/symbol_list.h"

namespace rota::account {
namespace {

// Thread pages are added this many at a time.
constexpr std::size_t kPagesAtOnce = 8;

// That a process executes one after the other.
constexpr int kMostPrograms = 1000;

struct Stat {
  std::uint32_t parent = 0;
  std::uint64_t start_ticks = 0;
};

// Fields 4 and 22; the second field is a name in parentheses, which may hold anything.
Stat stat_of(std::uint32_t pid) {
  const std::string text = files::read_small(fmt::format("/proc/{}/stat", pid), 1024);
  Stat stat;
  std::size_t at = text.rfind(')');
  if (at == std::string::npos) return stat;
  for (int field = 3; field <= 22 && at != std::string::npos; ++field) {
    at = text.find(' ', at);
    if (at == std::string::npos) break;
    ++at;
    if (field == 4) std::from_chars(text.data() + at, text.data() + text.size(), stat.parent);
    if (field == 22) std::from_chars(text.data() + at, text.data() + text.size(), stat.start_ticks);
  }
  return stat;
}

void describe(Person& person, std::uint32_t pid, std::uint64_t start_ticks) {
  const std::string proc = fmt::format("/proc/{}", pid);
  person.pid = pid;
  person.start_ticks = start_ticks;
  const std::string command = files::read_small(proc + "/cmdline", sizeof person.command);
  person.command_bytes = static_cast<std::uint32_t>(command.size());
  std::memcpy(person.command, command.data(), command.size());
  const ssize_t length = readlink((proc + "/cwd").c_str(), person.folder, sizeof person.folder - 1);
  if (length < 0) person.folder[0] = '\0';
}

std::int64_t clock_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

void describe_self(Header& header) {
  const auto own = static_cast<std::uint32_t>(getpid());
  Stat stat = stat_of(own);
  describe(header.self, own, stat.start_ticks);
  // A parent outside this process's pid namespace is 0.
  while (stat.parent != 0 && header.ancestor_count < kMaxAncestors) {
    const std::uint32_t pid = stat.parent;
    stat = stat_of(pid);
    if (stat.start_ticks == 0 && stat.parent == 0) break;
    describe(header.ancestors[header.ancestor_count++], pid, stat.start_ticks);
  }
  header.began_realtime_ns = clock_ns(CLOCK_REALTIME);
  header.began_monotonic_ns = clock_ns(CLOCK_MONOTONIC);
}

File* File::create(const std::string& folder, std::string& problem) {
  const auto failed = [&](const char* what, const std::string& path) {
    problem = fmt::format("{} {}: {}", what, path, std::strerror(errno));
    return nullptr;
  };
  const std::string processes = folder + "/processes";
  // The folder is the reporter's; what is missing inside it is not worth a failure.
  if (mkdir(processes.c_str(), 0777) != 0 && errno != EEXIST) return failed("cannot create the folder", processes);
  const auto pid = static_cast<std::uint32_t>(getpid());
  const std::string name = fmt::format("{}/{}-{}", processes, pid, stat_of(pid).start_ticks);
  auto* const made = new File;
  int file = -1;
  // The programs that a process executed before this one each left a file.
  for (int number = 0; file < 0 && number < kMostPrograms; ++number) {
    made->path_ = number == 0 ? name + ".account" : fmt::format("{}-{}.account", name, number);
    file = ::open(made->path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0 && errno != EEXIST) break;
  }
  const auto undone = [&](const char* what) {
    failed(what, made->path_);
    if (file >= 0) {
      ::unlink(made->path_.c_str());
      ::close(file);
    }
    delete made;
    return nullptr;
  };
  if (file < 0) return undone("cannot create");
  struct stat status{};
  fstat(file, &status);
  made->device_ = status.st_dev;
  made->inode_ = status.st_ino;
  void* const mapped = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return undone("cannot map");
  made->mapped_ = static_cast<std::byte*>(mapped);
  if (!made->reserve(file, kHeaderBytes + kPagesAtOnce * kThreadPageBytes)) return undone("the disk has no space for");
  ::close(file);
  Header& header = made->header();
  header.version = kVersion;
  header.header_bytes = sizeof(Header);
  header.thread_page_bytes = sizeof(ThreadPage);
  header.symbol_count = kSymbolCount;
  header.symbol_list = kSymbolListHash;
  return made;
}

void File::share(const std::string& outer) const {
  const std::string stem = path_.substr(path_.rfind('/') + 1, path_.rfind('.') - path_.rfind('/') - 1);
  for (int number = 0; number < kMostPrograms; ++number) {
    const std::string name = number == 0 ? stem : fmt::format("{}-{}", stem, number);
    if (::link(path_.c_str(), fmt::format("{}/processes/{}.account", outer, name).c_str()) == 0) return;
    if (errno != EEXIST) return;
  }
}

void File::mark_lost(const std::string& folder) {
  std::string name = files::read_small("/proc/self/comm", 64);
  name.resize(std::min(name.find('\n'), name.size()));
  std::ranges::replace(name, '/', '_');
  // Everybody may write there, so an existing file must not be opened.
  const std::string path = fmt::format("{}/lost/{} {} {}", folder, getpid(), geteuid(), name);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file >= 0) ::close(file);
}

File::~File() {
  if (mapped_ != nullptr) munmap(mapped_, kFileBytes);
}

bool File::reserve(int file, std::size_t bytes) {
  int error = files::reserve(file, static_cast<off_t>(bytes_), static_cast<off_t>(bytes - bytes_));
  if (error == 0 && !files::populate(mapped_ + bytes_, bytes - bytes_)) error = ENOSPC;
  errno = error;
  if (error == 0) bytes_ = bytes;
  return error == 0;
}

bool File::grow(std::size_t pages) {
  if (kHeaderBytes + pages * kThreadPageBytes <= bytes_) return true;
  if (pages > kMaxThreads) return false;
  // Not kept open: the program could close the descriptor and reuse it for another file.
  const int file = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  struct stat status{};
  const bool same = fstat(file, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
  const std::size_t more = std::min(kMaxThreads, (pages + kPagesAtOnce - 1) / kPagesAtOnce * kPagesAtOnce);
  const bool grown = same && reserve(file, kHeaderBytes + more * kThreadPageBytes);
  ::close(file);
  return grown;
}

}  // namespace rota::account
