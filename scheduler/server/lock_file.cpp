// Lock files in a folder that other users may write to: never follow a link there, never truncate before the lock is
// held.
#include "scheduler/server/lock_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "scheduler/protocol/lock_door.h"

namespace rota::server {
namespace {

// Rotads and people that ask at the same moment who has a GPU.
constexpr int kBacklog = 32;

Descriptor open_or_make(const std::string& path, mode_t mode) {
  // Without O_CREAT first: fs.protected_regular forbids it on other users' files in such a folder.
  for (int attempt = 0; attempt < 8; ++attempt) {
    Descriptor file(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    // Another user's file, whose owner has the lock or left the file behind: it can be locked anyway.
    if (!file && errno == EACCES) file = Descriptor(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
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

// The first line of a file that any user may have written: only printable characters, and not many.
std::string first_line(int file) {
  char text[160];
  const ssize_t length = pread(file, text, sizeof text, 0);
  std::string line;
  for (ssize_t i = 0; i < length && text[i] >= ' ' && text[i] <= '~'; ++i) line += text[i];
  return line.empty() ? "another rotad" : line;
}

// Whether the process with this pid runs as neither the owner nor root. Judges by the real user, which a setuid program
// does not change.
bool is_others(long pid, uid_t owner) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string word; status >> word;) {
    uid_t user = 0;
    if (word == "Uid:" && status >> user) return user != owner && user != 0;
  }
  return true;  // it has ended, and a process that inherited the lock from it is no rotad
}

// Any process that may read a file can lock it. Returns whether only processes of users other than the file's owner
// have locked it, according to the kernel: no rotad of the owner's.
bool only_others_hold(const struct stat& file) {
  std::ifstream locks("/proc/locks");
  const std::string wanted = fmt::format("{:02x}:{:02x}:{}", major(file.st_dev), minor(file.st_dev), file.st_ino);
  bool any = false;
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);  // "1: FLOCK ADVISORY WRITE 12 fd:01:34 0 EOF"
    std::string number, kind, advisory, access, where;
    long pid = 0;
    if (!(words >> number >> kind >> advisory >> access >> pid >> where) || kind != "FLOCK" || where != wanted)
      continue;
    if (pid <= 0 || !is_others(pid, file.st_uid)) return false;
    any = true;
  }
  return any;
}

// Whether the path still leads to the open file: the folder's owner may have unlinked it before it was locked, and
// another process may have locked a new file of that name.
bool still_there(const std::string& path, int file) {
  struct stat named;
  struct stat opened;
  return lstat(path.c_str(), &named) == 0 && fstat(file, &opened) == 0 && named.st_dev == opened.st_dev &&
         named.st_ino == opened.st_ino;
}

sockaddr_un abstract_address(const std::string& path, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = protocol::lock_name(path);
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// The process that listens at the name, according to the kernel: "rotad pid 12".
std::string holder_of(const std::string& path) {
  const Descriptor probe = LockFile::connect_to_name(path);
  ucred holder{};
  socklen_t size = sizeof holder;
  if (!probe || getsockopt(probe.get(), SOL_SOCKET, SO_PEERCRED, &holder, &size) != 0 || holder.pid == 0) {
    return "another rotad";
  }
  return fmt::format("rotad pid {}", holder.pid);
}

}  // namespace

Result<std::variant<LockFile, LockFile::Taken>> LockFile::take_with_name(const std::string& path,
                                                                         const std::string& owner, mode_t mode) {
  auto taken = take(path, owner, mode);
  if (!taken || std::holds_alternative<Taken>(*taken)) return taken;
  auto named = take_name(path);
  if (!named) return named;
  if (const auto* holder = std::get_if<Taken>(&*named)) {
    return std::variant<LockFile, Taken>(Taken{fmt::format("{}, whose lock file {} was removed", holder->owner, path)});
  }
  std::get<LockFile>(*taken).name_ = std::move(std::get<LockFile>(*named).name_);
  return taken;
}

bool LockFile::is_there() const {
  return file_ && still_there(path_, file_.get());
}

Result<std::optional<LockFile::Taken>> LockFile::make_again(const std::string& owner, mode_t mode) {
  auto taken = take(path_, owner, mode);
  if (!taken) return taken.error();
  if (auto* other = std::get_if<Taken>(&*taken)) return std::optional(std::move(*other));
  file_ = std::move(std::get<LockFile>(*taken).file_);
  return std::optional<Taken>();
}

LockFile::~LockFile() {
  name_ = {};
  if (is_there()) unlink(path_.c_str());
}

Result<std::variant<LockFile, LockFile::Taken>> LockFile::take_name(const std::string& path) {
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(path, length);
  Descriptor name(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!name) return Error{fmt::format("cannot create a socket for the lock {}: {}", path, strerror(errno))};
  if (bind(name.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno != EADDRINUSE)
      return Error{fmt::format("cannot take the name of the lock {}: {}", path, strerror(errno))};
    return std::variant<LockFile, Taken>(Taken{holder_of(path)});
  }
  // So that others can ask the kernel who it is; a GPU's has a door there (lock_door.h).
  if (listen(name.get(), kBacklog) != 0)
    return Error{fmt::format("cannot hold the lock {}: {}", path, strerror(errno))};
  LockFile lock;
  lock.name_ = std::move(name);
  return std::variant<LockFile, Taken>(std::move(lock));
}

Descriptor LockFile::connect_to_name(const std::string& path) {
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(path, length);
  Descriptor name(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!name || connect(name.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return {};
  return name;
}

Result<std::variant<LockFile, LockFile::Taken>> LockFile::take(const std::string& path, const std::string& owner,
                                                               mode_t mode) {
  Descriptor file;
  constexpr int kAttempts = 8;
  for (int attempt = 0; attempt == 0 || !still_there(path, file.get()); ++attempt) {
    if (attempt == kAttempts) return Error{fmt::format("something keeps removing the lock file {}: stop it", path)};
    file = open_or_make(path, mode);
    if (!file) return Error{fmt::format("cannot open the lock file {}: {}", path, strerror(errno))};
    struct stat info;
    if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
      return Error{fmt::format("the lock file {} is not a plain file: remove it", path)};
    }
    if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return Error{fmt::format("cannot lock {}: {}", path, strerror(errno))};
      // From now on they have locked a file without a name.
      if (info.st_uid == geteuid() && only_others_hold(info) && unlink(path.c_str()) == 0) continue;
      return std::variant<LockFile, Taken>(Taken{first_line(file.get())});
    }
  }
  fchmod(file.get(), mode);  // an older rotad may have made it; refused if it is another user's
  const std::string line = owner + "\n";
  const bool writable = (fcntl(file.get(), F_GETFL) & O_ACCMODE) == O_RDWR;
  if (!writable) return std::variant<LockFile, Taken>(LockFile(std::move(file), path));
  if (ftruncate(file.get(), 0) != 0 || pwrite(file.get(), line.data(), line.size(), 0) < 0) {
    return Error{fmt::format("cannot write to the lock file {}: {}", path, strerror(errno))};
  }
  return std::variant<LockFile, Taken>(LockFile(std::move(file), path));
}

Result<LockPlace> make_lock_place(const std::string& path) {
  // An administrator who wants different users' daemons to see each other's locks creates the folder with suitable
  // permissions.
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
    return Error{fmt::format("cannot create the lock folder {}: {}", path, strerror(errno))};
  }
  struct stat info;
  if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return Error{fmt::format("the lock folder {} is not a folder: remove it, or choose --lock-directory", path)};
  }
  // In one spelling, since the names of locks are derived from it.
  char* real = realpath(path.c_str(), nullptr);
  if (real == nullptr) return Error{fmt::format("cannot use the lock folder {}: {}", path, strerror(errno))};
  LockPlace place{.folder = real, .chosen = true};
  free(real);
  return place;
}

Result<bool> renew(LockPlace& place) {
  struct stat info;
  const bool there = lstat(place.folder.c_str(), &info) == 0;
  if (!place.chosen) {
    place.files = default_lock_place().files;
    return false;
  }
  if (there) return false;
  const auto made = make_lock_place(place.folder);
  if (!made) return made.error();
  // The names are made of the old spelling.
  if (made->folder != place.folder)
    return Error{fmt::format("the lock folder {} leads to {} now: restart rotad", place.folder, made->folder)};
  return true;
}

LockPlace default_lock_place() {
  LockPlace place{.folder = protocol::default_lock_folder()};
  struct stat info;
  place.files = lstat(place.folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
                access(place.folder.c_str(), W_OK | X_OK) == 0;
  return place;
}

}  // namespace rota::server
