// Lock files in a folder that another user may own: what that owner does at the worst moment, and daemons that share
// the folder but not the network.
#include "scheduler/server/lock_file.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

namespace {

// What happens just before a lock is requested: by then the daemon has opened the file.
std::function<void()> before_lock;

}  // namespace

// Replaces the C library's function for the daemon's code in this program.
extern "C" int flock(int descriptor, int operation) noexcept {
  if (before_lock) before_lock();
  return static_cast<int>(syscall(SYS_flock, descriptor, operation));
}

namespace rota::server {
namespace {

using Taken = LockFile::Taken;

struct Folder {
  Folder() {
    char name[] = "/tmp/rota-locks-test.XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    folder = name;
    path = folder + "/gpu.lock";
  }
  ~Folder() {
    before_lock = nullptr;
    unlink(path.c_str());
    rmdir(folder.c_str());
  }
  std::string folder;
  std::string path;
};

std::string content(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Empty if the lock is ours, otherwise who has it, or the error.
std::string take(const std::string& path, bool with_name = false) {
  const auto lock =
      with_name ? LockFile::take_with_name(path, "rotad pid 1", 0666) : LockFile::take(path, "rotad pid 1", 0666);
  if (!lock) return "an error";
  const auto* taken = std::get_if<Taken>(&*lock);
  return taken != nullptr ? taken->owner : std::string();
}

// A program of another network namespace; its exit status. -1 where the kernel allows none.
int elsewhere(const std::function<bool()>& holds) {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) _exit(77);
    _exit(holds() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status) == 77 ? -1 : WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("a lock is of the file that the path leads to, not of one that was unlinked before it was locked") {
  Folder f;
  const Descriptor first(open(f.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  int asked = 0;
  // The folder's owner unlinks the file that the daemon has opened, and another daemon locks the next one of that name.
  Descriptor other;
  before_lock = [&] {
    if (++asked != 1) return;
    unlink(f.path.c_str());
    other = Descriptor(open(f.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    REQUIRE(syscall(SYS_flock, other.get(), LOCK_EX | LOCK_NB) == 0);
    REQUIRE(write(other.get(), "rotad pid 7\n", 12) == 12);
  };
  CHECK(take(f.path) == "rotad pid 7");
  CHECK(asked == 2);
  CHECK(content(f.path) == "rotad pid 7\n");
}

TEST_CASE("a file that was only unlinked is made anew and locked, and names its holder") {
  Folder f;
  int asked = 0;
  before_lock = [&] {
    if (++asked == 1) unlink(f.path.c_str());
  };
  const auto lock = LockFile::take(f.path, "rotad pid 5 at /run", 0666);
  REQUIRE(lock);
  CHECK(std::holds_alternative<LockFile>(*lock));
  before_lock = nullptr;
  CHECK(content(f.path) == "rotad pid 5 at /run\n");
  CHECK(take(f.path) == "rotad pid 5 at /run");
}

TEST_CASE("a file that is replaced by a link to the same folder's other files is not followed") {
  Folder f;
  const std::string precious = f.folder + "/precious";
  std::ofstream(precious) << "precious";
  REQUIRE(symlink(precious.c_str(), f.path.c_str()) == 0);
  CHECK_FALSE(LockFile::take(f.path, "rotad pid 5", 0666));
  CHECK(content(precious) == "precious");
  unlink(precious.c_str());
}

TEST_CASE("who removes the file over and over keeps a daemon from the lock, and not from ending") {
  Folder f;
  int asked = 0;
  before_lock = [&] {
    ++asked;
    unlink(f.path.c_str());
  };
  CHECK_FALSE(LockFile::take(f.path, "rotad pid 5", 0666));
  CHECK(asked > 1);
  CHECK(asked < 100);
}

TEST_CASE("between network namespaces the file keeps a second daemon out, and within one the name does as well") {
  Folder f;
  const auto lock = LockFile::take_with_name(f.path, "rotad pid 5 at /run", 0666);
  REQUIRE(lock);
  REQUIRE(std::holds_alternative<LockFile>(*lock));
  const int kept_out = elsewhere([&] { return take(f.path, true) == "rotad pid 5 at /run"; });
  if (kept_out < 0) {
    WARN("no network namespaces on this machine");
    return;
  }
  CHECK(kept_out == 0);
  // Without its file the lock holds among daemons that share the network, as the README says, and not among others.
  REQUIRE(unlink(f.path.c_str()) == 0);
  CHECK(take(f.path, true) == "rotad pid " + std::to_string(getpid()) + ", whose lock file " + f.path + " was removed");
  CHECK(access(f.path.c_str(), F_OK) != 0);  // a refused daemon leaves no file
  CHECK(elsewhere([&] { return take(f.path, true).empty(); }) == 0);
}

TEST_CASE("a lock takes its file along, but not one that somebody else has put there") {
  Folder f;
  {
    CHECK(LockFile::take_with_name(f.path, "rotad pid 5", 0644));
  }
  CHECK(access(f.path.c_str(), F_OK) != 0);
  {
    const auto lock = LockFile::take_with_name(f.path, "rotad pid 5", 0644);
    REQUIRE(lock);
    REQUIRE(unlink(f.path.c_str()) == 0);
    std::ofstream(f.path) << "rotad pid 7";
  }
  CHECK(content(f.path) == "rotad pid 7");
}

TEST_CASE("a lock that a process of another user holds keeps nobody out") {
  if (geteuid() != 0) {
    WARN("only root can start a process of another user");
    return;
  }
  Folder f;
  REQUIRE(chmod(f.folder.c_str(), 0755) == 0);
  // A rotad that was killed has left it, and it can be read as those of older rotads could.
  const Descriptor left(open(f.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  REQUIRE(fchmod(left.get(), 0644) == 0);
  int ready[2];
  REQUIRE(pipe2(ready, O_CLOEXEC) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const bool other = setgid(65534) == 0 && setuid(65534) == 0;
    const Descriptor file(open(f.path.c_str(), O_RDONLY | O_CLOEXEC));
    const bool holds = other && syscall(SYS_flock, file.get(), LOCK_EX | LOCK_NB) == 0;
    if (write(ready[1], holds ? "y" : "n", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char answer = 0;
  REQUIRE(read(ready[0], &answer, 1) == 1);
  CHECK(answer == 'y');
  const auto lock = LockFile::take(f.path, "rotad pid 5 at /run", 0600);
  CHECK((lock && std::holds_alternative<LockFile>(*lock)));
  CHECK(take(f.path) == "rotad pid 5 at /run");  // which other rotads see
  struct stat info;
  REQUIRE(stat(f.path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE("a folder is made where one is named, for its owner to write to, and nowhere else") {
  Folder f;
  const std::string made = f.folder + "/locks";
  const mode_t before = umask(0);
  const auto place = make_lock_place(made);
  umask(before);
  REQUIRE(place);
  struct stat info;
  REQUIRE(stat(made.c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0755);
  CHECK(rmdir(made.c_str()) == 0);
  const LockPlace usual = default_lock_place();
  CHECK(usual.files == (access(usual.folder.c_str(), W_OK | X_OK) == 0));
  const auto name = LockFile::take_name(made + "/gpu.lock");
  REQUIRE(name);
  const auto other = LockFile::take_name(made + "/gpu.lock");
  REQUIRE(other);
  REQUIRE(std::holds_alternative<Taken>(*other));
  CHECK(std::get<Taken>(*other).owner == "rotad pid " + std::to_string(getpid()));
  CHECK(access(made.c_str(), F_OK) != 0);
}

TEST_CASE("a lock ends with the process that has it, however that dies") {
  Folder f;
  int ready[2];
  REQUIRE(pipe2(ready, O_CLOEXEC) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = LockFile::take_with_name(f.path, "rotad pid 5", 0666);
    const bool mine = lock && std::holds_alternative<LockFile>(*lock);
    if (write(ready[1], mine ? "y" : "n", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char answer = 0;
  REQUIRE(read(ready[0], &answer, 1) == 1);
  CHECK(answer == 'y');
  CHECK(take(f.path, true) == "rotad pid 5");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(take(f.path, true).empty());
  close(ready[0]);
  close(ready[1]);
}

}  // namespace rota::server
