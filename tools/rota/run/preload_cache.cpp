#include "tools/rota/run/preload_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "scheduler/base/descriptor.h"
#include "tools/rota/run/listed_path.h"

namespace rota::tool {
namespace {

namespace fs = std::filesystem;

// How many entries stay regardless of age, and how long the others stay after their last use. A program may run for
// weeks and start others under the preload all that time.
constexpr std::size_t kEntriesKept = 8;
constexpr auto kUnusedFor = std::chrono::hours(24 * 30);
// An entry's time of last use is updated when it is older than this.
constexpr auto kUseResolution = std::chrono::hours(24);
// Left-overs of a process that was killed while it created an entry.
constexpr const char* kUnfinished = ".new-";
constexpr std::size_t kUnfinishedTail = 6;  // what mkdtemp adds
constexpr auto kUnfinishedFor = std::chrono::hours(1);
// How long a start waits for another one that is creating an entry, which takes some milliseconds.
constexpr auto kMakerPatience = std::chrono::seconds(5);

constexpr const char* kLibraries[] = {"librota.so", "librota-nvml.so"};
constexpr const char* kCore = "librota-core.so";
constexpr const char* kRootsFolder = "/var/cache/rota";

std::string chosen_folder() {
  const auto variable = [](const char* name) {
    const char* value = getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::error_code error;
  if (const std::string own = variable("ROTA_CACHE"); !own.empty()) return fs::absolute(own, error).string();
  // HOME may be a user's (sudo), and a program that root starts may become any user.
  if (geteuid() == 0) return kRootsFolder;
  // The XDG base directory specification says to ignore a relative path.
  if (const std::string caches = variable("XDG_CACHE_HOME"); caches.starts_with('/')) return caches + "/rota";
  if (const std::string home = variable("HOME"); home.starts_with('/')) return home + "/.cache/rota";
  return "";
}

std::string own_temporary_folder() {
  return fmt::format("/tmp/rota-{}/cache", geteuid());
}

bool is_trusted(const struct stat& info) {
  return (info.st_uid == 0 || info.st_uid == geteuid()) && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// In a sticky folder such as /tmp, other users cannot change one's entries.
bool is_trusted_above(const struct stat& info) {
  if ((info.st_mode & S_ISVTX) != 0 && S_ISDIR(info.st_mode)) return info.st_uid == 0 || info.st_uid == geteuid();
  return is_trusted(info);
}

std::string above(const std::string& path) {
  return path.substr(0, std::max<std::size_t>(path.rfind('/'), 1));
}

// The path without links, as far as it exists.
std::string resolved(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  std::string missing;
  char real[PATH_MAX];
  while (realpath(path.c_str(), real) == nullptr) {
    if (path.size() <= 1) return path + missing;
    missing = path.substr(path.rfind('/')) + missing;
    path = above(path);
  }
  return real == std::string("/") && !missing.empty() ? missing : real + missing;
}

bool make_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0) return errno == EEXIST;
  // What root creates for everybody must not depend on the umask of the first shell.
  return path != kRootsFolder || chmod(path.c_str(), 0755) == 0;
}

bool make_folders(const std::string& path) {
  if (make_folder(path)) return true;
  return errno == ENOENT && path.size() > 1 && make_folders(above(path)) && make_folder(path);
}

bool is_key(const std::string& name) {
  return name.size() == PreloadCache::kKeyDigits &&
         std::ranges::all_of(name, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_unfinished(const std::string& name) {
  return name.starts_with(kUnfinished) && name.size() == std::strlen(kUnfinished) + kUnfinishedTail &&
         std::ranges::all_of(name.substr(std::strlen(kUnfinished)),
                             [](unsigned char c) { return std::isalnum(c) != 0; });
}

// An entry, complete or half created. A folder with other contents is not one and is not touched: the cache may have
// been set to a folder with other uses.
void remove_entry(const std::string& entry) {
  std::vector<std::string> ours;
  std::error_code error;
  for (fs::directory_iterator file(entry, error), end; !error && file != end; file.increment(error)) {
    const std::string name = file->path().filename();
    const bool ours_by_name = std::ranges::any_of(kLibraries, [&](const std::string& library) {
      // write_with_exports writes librota.so.XXXXXX first.
      return name == library || (name.starts_with(library + ".") && name.size() == library.size() + 7);
    });
    if (!ours_by_name && name != kCore) return;
    ours.push_back(file->path());
  }
  if (error) return;
  for (const std::string& file : ours) unlink(file.c_str());
  rmdir(entry.c_str());
}

bool leads_to(const std::string& link, const std::string& target) {
  char buffer[PATH_MAX];
  const ssize_t size = readlink(link.c_str(), buffer, sizeof buffer);
  return size > 0 && std::string_view(buffer, static_cast<std::size_t>(size)) == target;
}

// False on a file system that is mounted noexec, for example: the loader would complain in every program.
bool is_loadable(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return false;
  void* page = mmap(nullptr, 1, PROT_READ | PROT_EXEC, MAP_PRIVATE, file.get(), 0);
  if (page == MAP_FAILED) return false;
  munmap(page, 1);
  return true;
}

// Held by the one process that changes the cache's folder; the kernel releases it if the process dies.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder) : folder_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    const auto end = std::chrono::steady_clock::now() + kMakerPatience;
    while (folder_ && !(held_ = flock(folder_.get(), LOCK_EX | LOCK_NB) == 0)) {
      if (errno != EINTR && (errno != EWOULDBLOCK || std::chrono::steady_clock::now() > end)) break;
      usleep(2000);
    }
  }
  bool held() const { return held_; }

 private:
  Descriptor folder_;
  bool held_ = false;
};

// Written to disk before it gets its name: a power failure must not leave an empty library.
bool sync_file(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file && fdatasync(file.get()) == 0;
}

std::chrono::system_clock::time_point time_of(const struct stat& info) {
  return std::chrono::system_clock::from_time_t(info.st_mtime);
}

}  // namespace

PreloadCache::PreloadCache(std::string library) : library_(std::move(library)), folder_(chosen_folder()) {
  if (!folder_.empty() && !fits_lists(resolved(folder_))) folder_ = own_temporary_folder();
}

std::string PreloadCache::distrust(bool make) {
  if (folder_.empty()) return "there is no home directory; set ROTA_CACHE to a folder of yours";
  // From here on only this path is used: a link in the original one could later lead elsewhere.
  folder_ = resolved(folder_);
  if (!fits_lists(folder_)) {
    return fmt::format("{} cannot be in a list of paths; set ROTA_CACHE to another folder", folder_);
  }
  struct stat info;
  bool exists = lstat(folder_.c_str(), &info) == 0;
  if (!exists && !make) return fmt::format("{}: {}", folder_, std::strerror(errno));
  // A user who may rename a folder on the path could replace it. Checked before anything is created: nothing is created
  // in another user's folder.
  for (std::string on_the_way = folder_; on_the_way.size() > 1;) {
    on_the_way = above(on_the_way);
    struct stat there;
    if (lstat(on_the_way.c_str(), &there) != 0) {
      if (!exists && (errno == ENOENT || errno == ENOTDIR)) continue;  // does not exist yet
      return fmt::format("{}: {}", on_the_way, std::strerror(errno));
    }
    if (!is_trusted_above(there)) {
      return fmt::format("{} is in {}, which other users can change; set ROTA_CACHE to another folder", folder_,
                         on_the_way);
    }
  }
  if (!exists) {
    if (!make_folders(folder_)) {
      return fmt::format("cannot create {}: {}; set ROTA_CACHE to a folder of yours", folder_, std::strerror(errno));
    }
    return distrust(false);  // another process may have been first
  }
  if (!S_ISDIR(info.st_mode) || !is_trusted(info)) {
    return fmt::format("{} is not a folder that only you can write to; set ROTA_CACHE to one", folder_);
  }
  mode_ = info.st_mode & 0755;
  return "";
}

std::string PreloadCache::find(const std::string& key, std::uintmax_t size, const std::string& core) {
  struct stat folder, file;
  if (folder_.empty() || lstat(place(key).c_str(), &file) != 0 || !distrust(false).empty()) return "";
  const std::string entry = folder_ + "/" + key;
  const std::string library = place(key);
  if (lstat(entry.c_str(), &folder) != 0 || !S_ISDIR(folder.st_mode) || !is_trusted(folder)) return "";
  if (lstat(library.c_str(), &file) != 0 || !S_ISREG(file.st_mode) || !is_trusted(file)) return "";
  if (static_cast<std::uintmax_t>(file.st_size) != size || !leads_to(entry + "/" + kCore, core)) return "";
  if (!is_loadable(library)) return "";
  // A failure of either does not matter. The cache's mode may have been changed for other users.
  if ((folder.st_mode & 07777) != mode_) chmod(entry.c_str(), mode_);
  if (std::chrono::system_clock::now() - time_of(folder) > kUseResolution) {
    utimensat(AT_FDCWD, entry.c_str(), nullptr, 0);
  }
  return library;
}

Result<std::string> PreloadCache::add(const std::string& key, std::uintmax_t size, const std::string& core,
                                      const std::function<Result<bool>(const std::string&)>& make) {
  if (const std::string why = distrust(true); !why.empty()) return Error{why};
  const FolderLock lock(folder_);
  if (!lock.held())
    return Error{fmt::format("another process has locked {} for too long; set ROTA_CACHE to another folder", folder_)};
  if (std::string theirs = find(key, size, core); !theirs.empty()) return theirs;
  std::string fresh = folder_ + "/" + kUnfinished + "XXXXXX";
  if (mkdtemp(fresh.data()) == nullptr) {
    return Error{
        fmt::format("cannot write to {}: {}; set ROTA_CACHE to a folder of yours", folder_, std::strerror(errno))};
  }
  const auto give_up = [&](const std::string& why) {
    remove_entry(fresh);
    return Error{why};
  };
  const std::string library = fresh + "/" + library_;
  if (const auto made = make(library); !made) return give_up(made.error().text);
  if (!is_loadable(library)) {
    return give_up(fmt::format("nothing can be loaded from {}: {} (mounted noexec?); set ROTA_CACHE to another folder",
                               folder_, std::strerror(errno)));
  }
  if (!sync_file(library) || symlink(core.c_str(), (fresh + "/" + kCore).c_str()) != 0) {
    return give_up(fmt::format("cannot write {}: {}", library, std::strerror(errno)));
  }
  // Users that may read the cache may use its entries: for example, programs that change to another user.
  chmod(fresh.c_str(), mode_);
  const std::string entry = folder_ + "/" + key;
  remove_entry(entry);  // a damaged one
  if (rename(fresh.c_str(), entry.c_str()) != 0) return give_up(fmt::format("{} cannot be replaced; remove it", entry));
  remove_old(key);
  return place(key);
}

Result<std::string> PreloadCache::link_to(const std::string& folder) {
  PreloadCache usual("");
  auto link = usual.link_here(folder);
  if (link) return link;
  PreloadCache temporary("", own_temporary_folder());
  if (auto other = temporary.link_here(folder)) return other;
  return link;
}

Result<std::string> PreloadCache::link_here(const std::string& folder) {
  if (const std::string why = distrust(true); !why.empty()) return Error{why};
  const auto failed = [&](const std::string& link) {
    return Error{
        fmt::format("cannot make the link {}: {}; set ROTA_CACHE to a folder of yours", link, std::strerror(errno))};
  };
  constexpr unsigned kAlike = 8;
  for (unsigned other = 0; other < kAlike; ++other) {
    const std::string link = fmt::format("{}/at-{:016x}", folder_, std::hash<std::string>{}(folder) + other);
    if (leads_to(link, folder) || symlink(folder.c_str(), link.c_str()) == 0) return link;
    if (errno != EEXIST) return failed(link);
    if (leads_to(link, folder)) return link;  // somebody else has just made it
  }
  errno = EEXIST;
  return failed(folder_);
}

void PreloadCache::remove_old(const std::string& but) const {
  struct Entry {
    fs::path path;
    std::chrono::system_clock::time_point used;
  };
  const auto now = std::chrono::system_clock::now();
  std::vector<Entry> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    struct stat info;
    if (lstat(entry->path().c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) continue;
    const std::string name = entry->path().filename();
    if (is_key(name) && name != but) entries.push_back({entry->path(), time_of(info)});
    if (is_unfinished(name) && now - time_of(info) > kUnfinishedFor) remove_entry(entry->path());
  }
  std::ranges::sort(entries, std::greater(), &Entry::used);
  for (std::size_t i = kEntriesKept - 1; i < entries.size(); ++i) {
    if (now - entries[i].used > kUnusedFor) remove_entry(entries[i].path);
  }
}

}  // namespace rota::tool
