// Lock files in a folder that all users may write to: never follow a link there, never truncate before the lock is
// held.
#include "scheduler/server/lock_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace rota::server {
namespace {

Descriptor open_or_make(const std::string& path, mode_t mode) {
  // Without O_CREAT first: fs.protected_regular forbids it on other users' files in such a folder.
  for (int attempt = 0; attempt < 8; ++attempt) {
    Descriptor file(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (file || errno != ENOENT) return file;
    file = Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    if (file) {
      fchmod(file.get(), mode);  // whatever the umask: the next owner may be another user
      return file;
    }
    if (errno != EEXIST) return file;
  }
  return Descriptor();
}

// The first line of a file that anybody may have written: printable characters only, and not many of them.
std::string first_line(int file) {
  char text[160];
  const ssize_t length = pread(file, text, sizeof text, 0);
  std::string line;
  for (ssize_t i = 0; i < length && text[i] >= ' ' && text[i] <= '~'; ++i) line += text[i];
  return line.empty() ? "another rotad" : line;
}

}  // namespace

Result<std::variant<LockFile, LockFile::Taken>> LockFile::take(const std::string& path, const std::string& owner,
                                                               mode_t mode) {
  Descriptor file = open_or_make(path, mode);
  if (!file) return Error{fmt::format("cannot open the lock file {}: {}", path, strerror(errno))};
  struct stat info;
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return Error{fmt::format("the lock file {} is not a plain file: remove it", path)};
  }
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Error{fmt::format("cannot lock {}: {}", path, strerror(errno))};
    return std::variant<LockFile, Taken>(Taken{first_line(file.get())});
  }
  const std::string line = owner + "\n";
  if (ftruncate(file.get(), 0) != 0 || pwrite(file.get(), line.data(), line.size(), 0) < 0) {
    return Error{fmt::format("cannot write to the lock file {}: {}", path, strerror(errno))};
  }
  return std::variant<LockFile, Taken>(LockFile(std::move(file)));
}

Result<std::string> make_lock_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0) {
    // mkdir cannot set the sticky bit; the umask must not narrow what all users share.
    if (chmod(path.c_str(), 01777) != 0)
      return Error{fmt::format("cannot open {} to all users: {}", path, strerror(errno))};
    return path;
  }
  if (errno != EEXIST) return Error{fmt::format("cannot make the lock folder {}: {}", path, strerror(errno))};
  struct stat info;
  if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return Error{fmt::format("the lock folder {} is not a folder: remove it, or choose --lock-directory", path)};
  }
  return path;
}

Result<std::string> default_lock_directory() {
  // By a property of the machine, not of the user: all daemons must look in the same place.
  struct stat info;
  const bool shared = stat("/run/lock", &info) == 0 && S_ISDIR(info.st_mode) && (info.st_mode & S_IWOTH) != 0;
  return make_lock_directory(shared ? "/run/lock/rota" : "/tmp/rota-locks");
}

}  // namespace rota::server
