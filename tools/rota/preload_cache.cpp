#include "tools/rota/preload_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

namespace rota::tool {
namespace {

namespace fs = std::filesystem;

// Entries that stay however old they are, and how long the others stay after their last use. A program may run for
// weeks and start others under the preload all that time.
constexpr std::size_t kEntriesKept = 8;
constexpr auto kUnusedFor = std::chrono::hours(24 * 30);
// An entry's time of last use is written again when it is older than this.
constexpr auto kUseResolution = std::chrono::hours(24);
// What a maker that was killed left behind.
constexpr const char* kUnfinished = ".new-";
constexpr auto kUnfinishedFor = std::chrono::hours(1);

std::string chosen_folder() {
  const auto variable = [](const char* name) {
    const char* value = getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::error_code error;
  if (const std::string own = variable("ROTA_CACHE"); !own.empty()) return fs::absolute(own, error).string();
  // A relative one is to be ignored, says the XDG base directory specification.
  if (const std::string caches = variable("XDG_CACHE_HOME"); caches.starts_with('/')) return caches + "/rota";
  if (const std::string home = variable("HOME"); home.starts_with('/')) return home + "/.cache/rota";
  return "";
}

bool may_be_changed_by_others(const struct stat& info) {
  if (info.st_uid != 0 && info.st_uid != geteuid()) return true;
  if ((info.st_mode & S_ISVTX) != 0 && S_ISDIR(info.st_mode)) return false;  // others' entries are safe in there
  if ((info.st_mode & S_IWOTH) != 0) return true;
  // A group of the user's own number is, by custom, the user's alone.
  return (info.st_mode & S_IWGRP) != 0 && info.st_gid != 0 && info.st_gid != geteuid();
}

bool is_ours(const struct stat& info) {
  return info.st_uid == geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

bool make_folders(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return true;
  if (errno != ENOENT) return false;
  const auto slash = path.rfind('/');
  return slash != 0 && slash != std::string::npos && make_folders(path.substr(0, slash)) &&
         (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST);
}

// Onto the disk before it has its name: a power cut must not leave an empty library there.
bool sync_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool synced = fdatasync(file) == 0;
  close(file);
  return synced;
}

std::chrono::system_clock::time_point time_of(const struct stat& info) {
  return std::chrono::system_clock::from_time_t(info.st_mtime);
}

}  // namespace

PreloadCache::PreloadCache() : folder_(chosen_folder()) {}

std::string PreloadCache::distrust(bool make) const {
  if (folder_.empty()) return "there is no home directory; set ROTA_CACHE to a folder of yours";
  if (folder_.find_first_of(": ") != std::string::npos) {
    return fmt::format("{} has a space or colon in its name; set ROTA_CACHE to another folder", folder_);
  }
  if (make && !make_folders(folder_)) {
    return fmt::format("{} cannot be made: {}; set ROTA_CACHE to a folder of yours", folder_, std::strerror(errno));
  }
  char resolved[PATH_MAX];
  if (realpath(folder_.c_str(), resolved) == nullptr) return fmt::format("{}: {}", folder_, std::strerror(errno));
  struct stat info;
  if (lstat(resolved, &info) != 0 || !S_ISDIR(info.st_mode) || !is_ours(info)) {
    return fmt::format("{} is not a folder that only you can write to; set ROTA_CACHE to one", folder_);
  }
  // Who may rename a folder on the way may put another one in its place.
  for (std::string above = resolved; above.size() > 1;) {
    above.erase(std::max<std::size_t>(above.rfind('/'), 1));
    if (above == resolved || lstat(above.c_str(), &info) != 0 || may_be_changed_by_others(info)) {
      return fmt::format("{} lies in {}, which others may change; set ROTA_CACHE to another folder", folder_, above);
    }
  }
  return "";
}

std::string PreloadCache::find(const std::string& key, std::uintmax_t size) const {
  const std::string entry = folder_ + "/" + key;
  const std::string library = place(key);
  struct stat folder, file;
  if (folder_.empty() || lstat(library.c_str(), &file) != 0 || lstat(entry.c_str(), &folder) != 0) return "";
  if (!S_ISDIR(folder.st_mode) || !is_ours(folder) || !S_ISREG(file.st_mode) || !is_ours(file)) return "";
  if (static_cast<std::uintmax_t>(file.st_size) != size || !distrust(false).empty()) return "";
  if (std::chrono::system_clock::now() - time_of(folder) > kUseResolution) {
    utimensat(AT_FDCWD, entry.c_str(), nullptr, 0);  // of no consequence where it fails
  }
  return library;
}

elf::Result<std::string> PreloadCache::add(const std::string& key, const std::string& core,
                                           const std::function<elf::Result<bool>(const std::string&)>& make) const {
  if (const std::string why = distrust(true); !why.empty()) return elf::Error{why};
  std::string fresh = folder_ + "/" + kUnfinished + "XXXXXX";
  if (mkdtemp(fresh.data()) == nullptr) {
    return elf::Error{
        fmt::format("{} cannot be written to: {}; set ROTA_CACHE to a folder of yours", folder_, std::strerror(errno))};
  }
  std::error_code ignored;
  const auto give_up = [&](const std::string& why) {
    fs::remove_all(fresh, ignored);
    return elf::Error{why};
  };
  const std::string library = fresh + "/librota.so";
  if (const auto made = make(library); !made) return give_up(made.error().text);
  if (!sync_file(library) || symlink(core.c_str(), (fresh + "/librota-core.so").c_str()) != 0) {
    return give_up(fmt::format("{} cannot be written: {}", library, std::strerror(errno)));
  }
  // Whoever may look into the cache may use what is in it: programs that change to another user, for example.
  struct stat info;
  if (stat(folder_.c_str(), &info) == 0) chmod(fresh.c_str(), info.st_mode & 0755);
  const std::string entry = folder_ + "/" + key;
  struct stat complete;
  if (stat(library.c_str(), &complete) != 0) return give_up(fmt::format("{}: {}", library, std::strerror(errno)));
  const auto size = static_cast<std::uintmax_t>(complete.st_size);
  // Once as it is; once more after a spoiled entry of that name was put out of the way.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (rename(fresh.c_str(), entry.c_str()) == 0) {
      remove_old(key);
      return place(key);
    }
    // Another process was first?
    if (const std::string theirs = find(key, size); !theirs.empty()) {
      fs::remove_all(fresh, ignored);
      return theirs;
    }
    const std::string spoiled = fresh + "-spoiled";
    if (rename(entry.c_str(), spoiled.c_str()) == 0) fs::remove_all(spoiled, ignored);
  }
  return give_up(fmt::format("{} cannot be replaced; remove it", entry));
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
    if (name == but) continue;
    if (!name.starts_with(kUnfinished)) {
      entries.push_back({entry->path(), time_of(info)});
    } else if (now - time_of(info) > kUnfinishedFor) {
      std::error_code ignored;
      fs::remove_all(entry->path(), ignored);
    }
  }
  std::ranges::sort(entries, std::greater(), &Entry::used);
  for (std::size_t i = kEntriesKept - 1; i < entries.size(); ++i) {
    std::error_code ignored;
    if (now - entries[i].used > kUnusedFor) fs::remove_all(entries[i].path, ignored);
  }
}

}  // namespace rota::tool
