#include "tools/rota/try/output_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <vector>

namespace rota::attempt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = ".owner";
constexpr const char* kNewLock = ".owner.new";  // until it is locked
// Behind the name of a folder that is being removed.
constexpr const char* kGone = ".gone";

// TMPDIR; /tmp if that is not set, or is relative to a working directory that no longer exists.
std::string temporary_folder() {
  const char* const folder = std::getenv("TMPDIR");
  // Absolute: programs that change their folder are told of it.
  std::error_code error;
  const fs::path absolute = fs::absolute(folder != nullptr && *folder != '\0' ? folder : "/tmp", error);
  return error ? "/tmp" : absolute.string();
}

// For a folder without an owner's file: whether its owner was killed while making it, and is not just making it.
bool is_unfinished(const fs::path& folder, std::time_t changed) {
  constexpr std::time_t kMinute = 60;
  if (std::time(nullptr) - changed < kMinute) return false;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename() != kNewLock) return false;  // it is to be kept
  }
  return !error;
}

bool is_stale(const fs::path& folder) {
  struct stat info{};
  if (lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) return false;
  if (folder.string().ends_with(kGone)) return true;  // two may remove it at once
  const Descriptor lock(open((folder / kLock).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!lock) return errno == ENOENT && is_unfinished(folder, info.st_mtime);
  return flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
}

// A rotad or program that is still running may create or remove a file there at the same moment: once the folder has
// another name they no longer find it, and what they had begun is finished by the next attempt.
void remove_whole(const fs::path& folder) {
  std::error_code error;
  fs::path last = folder;
  if (!folder.string().ends_with(kGone)) {
    const fs::path gone = folder.string() + kGone;
    fs::rename(folder, gone, error);
    if (!error) last = gone;
  }
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    fs::remove_all(last, error);
    if (!error) return;
  }
}

void remove_stale_in(const std::string& parent, const std::string& name) {
  std::vector<fs::path> stale;
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().starts_with(name + "-") && is_stale(entry->path())) {
      stale.push_back(entry->path());
    }
  }
  for (const fs::path& folder : stale) remove_whole(folder);
}

}  // namespace

std::vector<std::string> temporary_folders() {
  std::vector<std::string> folders = {temporary_folder()};
  for (const char* const usual : {"/tmp", "/dev/shm"}) {
    if (folders.front() != usual) folders.emplace_back(usual);
  }
  return folders;
}

OutputFolder::OutputFolder(const std::string& name, const std::vector<std::string>& parents) {
  remove_stale(name);
  std::string tried;
  for (const std::string& parent : parents) {
    path_ = fmt::format("{}/{}-XXXXXX", parent, name);
    if (mkdtemp(path_.data()) != nullptr) break;
    tried += fmt::format("{}{} ({})", tried.empty() ? "" : ", ", parent, strerror(errno));
    path_.clear();
  }
  if (path_.empty()) {
    problem_ =
        fmt::format("cannot make a temporary folder in {}: set TMPDIR to a folder that can be written to", tried);
    return;
  }
  // The file is locked before it gets its name. On a file system without locks there is no such file, and the folder
  // stays after a kill.
  const std::string unnamed = path_ + "/" + kNewLock;
  lock_ = Descriptor(open(unnamed.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!lock_) return;
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 || std::rename(unnamed.c_str(), lock_file().c_str()) != 0) {
    ::unlink(unnamed.c_str());
  }
}

OutputFolder::~OutputFolder() {
  if (!kept_) remove();
}

void OutputFolder::remove() const {
  if (problem_.empty()) remove_whole(path_);
}

const std::string& OutputFolder::keep() {
  kept_ = true;
  ::unlink(lock_file().c_str());
  return path_;
}

void OutputFolder::remove_stale(const std::string& name) {
  for (const std::string& folder : temporary_folders()) remove_stale_in(folder, name);
}

std::string OutputFolder::lock_file() const {
  return path_ + "/" + kLock;
}

}  // namespace rota::attempt
