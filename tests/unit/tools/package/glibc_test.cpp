// What tools/package/glibc/functions.cpp puts in the place of newer functions of the C library. Here it does so too,
// and without the C library's pthread_cond_clockwait, as on glibc 2.28 and 2.29.
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <set>
#include <string>
#include <thread>

extern "C" {
int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const timespec* until);
uint32_t arc4random() noexcept;
extern char __libc_single_threaded;
}

namespace {

timespec from_now(long milliseconds) {
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  const long nanoseconds = until.tv_nsec + milliseconds % 1000 * 1'000'000;
  until.tv_sec += milliseconds / 1000 + (nanoseconds < 0 ? -1 : nanoseconds / 1'000'000'000);
  until.tv_nsec = (nanoseconds + 1'000'000'000) % 1'000'000'000;
  return until;
}

bool is_past(const timespec& time) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec > time.tv_sec || (now.tv_sec == time.tv_sec && now.tv_nsec >= time.tv_nsec);
}

struct Wait {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  Wait() { pthread_mutex_lock(&mutex); }
  ~Wait() { pthread_mutex_unlock(&mutex); }
  int until(const timespec& time, clockid_t clock = CLOCK_MONOTONIC) {
    return __wrap_pthread_cond_clockwait(&changed, &mutex, clock, &time);
  }
};

struct Folder {
  char path[32] = "/tmp/rota-glibc-XXXXXX";
  std::string file, link;
  Folder() {
    REQUIRE(mkdtemp(path) != nullptr);
    file = std::string(path) + "/file", link = std::string(path) + "/link";
    const int descriptor = open(file.c_str(), O_CREAT | O_WRONLY, 0600);
    REQUIRE(write(descriptor, "12345", 5) == 5);
    close(descriptor);
    REQUIRE(symlink("file", link.c_str()) == 0);
  }
  ~Folder() {
    unlink(file.c_str()), unlink(link.c_str());
    rmdir(path);
  }
};

}  // namespace

TEST_CASE("A wait on the monotonic clock times out at its time and not before") {
  Wait wait;
  const timespec time = from_now(30);
  int result = 0;
  while ((result = wait.until(time)) == 0) {
  }
  CHECK(result == ETIMEDOUT);
  CHECK(is_past(time));
}

TEST_CASE("A wait for a time that has passed times out at once") {
  Wait wait;
  CHECK(wait.until(from_now(-1)) == ETIMEDOUT);
  CHECK(wait.until(from_now(-60'000)) == ETIMEDOUT);
  CHECK(wait.until(timespec{0, 0}) == ETIMEDOUT);
}

TEST_CASE("A wait for a far time ends when it is signalled, and after a second for nothing") {
  Wait wait;
  bool happened = false;
  std::thread other([&] {
    pthread_mutex_lock(&wait.mutex);
    happened = true;
    pthread_cond_signal(&wait.changed);
    pthread_mutex_unlock(&wait.mutex);
  });
  const timespec time = from_now(3'600'000);
  while (!happened) REQUIRE(wait.until(time) == 0);
  other.join();
  const timespec second = from_now(1000);
  CHECK(wait.until(timespec{INT64_MAX, 0}) == 0);
  CHECK(is_past(second));
}

TEST_CASE("A time or a clock that is none is refused") {
  Wait wait;
  CHECK(wait.until(timespec{0, 1'000'000'000}) == EINVAL);
  CHECK(wait.until(timespec{0, -1}) == EINVAL);
  CHECK(wait.until(timespec{0, 0}, 12345) == EINVAL);
}

TEST_CASE("Files are told from links, and what is missing is an error") {
  const Folder folder;
  struct stat found{};
  CHECK(stat(folder.link.c_str(), &found) == 0);
  CHECK((S_ISREG(found.st_mode) && found.st_size == 5 && found.st_uid == geteuid()));
  CHECK(lstat(folder.link.c_str(), &found) == 0);
  CHECK((S_ISLNK(found.st_mode) && found.st_size == 4));
  const int descriptor = open(folder.file.c_str(), O_RDONLY | O_CLOEXEC);
  CHECK(fstat(descriptor, &found) == 0);
  CHECK(found.st_size == 5);
  struct stat64 large{};
  CHECK(fstat64(descriptor, &large) == 0);
  CHECK((large.st_size == 5 && large.st_ino == found.st_ino));
  close(descriptor);
  const int parent = open(folder.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  CHECK(fstatat(parent, "link", &found, AT_SYMLINK_NOFOLLOW) == 0);
  CHECK(S_ISLNK(found.st_mode));
  close(parent);
  errno = 0;
  CHECK(stat((folder.file + "/none").c_str(), &found) == -1);
  CHECK(errno == ENOTDIR);
  CHECK(fstat(-1, &found) == -1);
  CHECK(errno == EBADF);
}

TEST_CASE("Random numbers differ, and threads are always reckoned with") {
  std::set<uint32_t> numbers;
  for (int count = 0; count < 100; ++count) numbers.insert(arc4random());
  CHECK(numbers.size() > 95);
  CHECK(__libc_single_threaded == 0);
}
