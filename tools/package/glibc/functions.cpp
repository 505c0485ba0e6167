// What Debian's libstdc++.a, and objects compiled with its headers, take from a glibc newer than 2.28
// (cmake/glibc.cmake links this into every product). Most of these are hardly more than a system call.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <cstdint>

// Each product has its own. Said to the assembler, since headers may have declared them otherwise.
#define ROTA_HIDE(name) asm(".hidden " #name)
ROTA_HIDE(__libc_single_threaded);
ROTA_HIDE(fstatat);
ROTA_HIDE(fstat);
ROTA_HIDE(stat);
ROTA_HIDE(lstat);
ROTA_HIDE(fstat64);
ROTA_HIDE(getcpu);
ROTA_HIDE(arc4random);
ROTA_HIDE(__wrap_pthread_cond_clockwait);

extern "C" {

// 2.32. A hint only: false means that counters are changed by atomic instructions, as in any program with two threads.
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

// 2.33; before that these were inline functions of sys/stat.h. Their struct is the kernel's.
int fstatat(int folder, const char* path, struct stat* result, int flags) noexcept {
  return static_cast<int>(syscall(SYS_newfstatat, folder, path, result, flags));
}
int fstat(int descriptor, struct stat* result) noexcept {
  return static_cast<int>(syscall(SYS_fstat, descriptor, result));
}
int stat(const char* path, struct stat* result) noexcept {
  return fstatat(AT_FDCWD, path, result, 0);
}
int lstat(const char* path, struct stat* result) noexcept {
  return fstatat(AT_FDCWD, path, result, AT_SYMLINK_NOFOLLOW);
}
static_assert(sizeof(struct stat64) == sizeof(struct stat));
int fstat64(int descriptor, struct stat64* result) noexcept {
  return static_cast<int>(syscall(SYS_fstat, descriptor, result));
}

// 2.29.
int getcpu(unsigned* cpu, unsigned* node) noexcept {
  return static_cast<int>(syscall(SYS_getcpu, cpu, node, nullptr));
}

// 2.36, for std::random_device.
uint32_t arc4random() noexcept {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) {
    if (errno != EINTR) abort();  // as arc4random does: there is no worse random number than a known one
  }
  return value;
}

// 2.30, for std::condition_variable. Calls the C library's own wherever it has one (a reference without a version, so
// that none is demanded). Otherwise the wait goes by the wall clock, which may be set meanwhile, so it lasts a second
// at most: then the caller is woken for nothing, as it may be at any time, and waits again.
int __real_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const timespec* until) __attribute__((weak));

int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const timespec* until) {
  if (__real_pthread_cond_clockwait != nullptr) return __real_pthread_cond_clockwait(condition, mutex, clock, until);
  constexpr int64_t kSecond = 1'000'000'000;
  timespec now{};
  if (until->tv_nsec < 0 || until->tv_nsec >= kSecond || clock_gettime(clock, &now) != 0) return EINVAL;
  // Years that do not fit are a second too.
  const int64_t seconds = until->tv_sec > now.tv_sec + 1   ? 2
                          : until->tv_sec < now.tv_sec - 1 ? -2
                                                           : until->tv_sec - now.tv_sec;
  const int64_t left = seconds * kSecond + until->tv_nsec - now.tv_nsec;
  const int64_t waited = left > kSecond ? kSecond : left < 0 ? 0 : left;
  timespec wall{};
  clock_gettime(CLOCK_REALTIME, &wall);
  const int64_t nanoseconds = wall.tv_nsec + waited;
  wall.tv_sec += nanoseconds / kSecond;
  wall.tv_nsec = nanoseconds % kSecond;
  const int result = pthread_cond_timedwait(condition, mutex, &wall);
  if (result != ETIMEDOUT) return result;
  clock_gettime(clock, &now);
  const bool reached = now.tv_sec > until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec);
  return reached ? ETIMEDOUT : 0;
}

}  // extern "C"
