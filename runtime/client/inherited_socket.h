// A socket of this process's that the child of a fork must not keep. The program may close it (daemons close all
// descriptors) and get its number for a file of its own: so it is known by its inode as well.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <utility>

namespace rota::client {

class InheritedSocket {
 public:
  void keep(int descriptor) noexcept {
    struct stat status{};
    inode_.store(fstat(descriptor, &status) == 0 ? status.st_ino : 0);
    descriptor_.store(descriptor);
  }
  // Before the descriptor is closed: a child that is forked in between must not close another one with the same number.
  void forget(int descriptor) noexcept { descriptor_.compare_exchange_strong(descriptor, -1); }
  // Whether the number still refers to that socket.
  bool is(int descriptor) const noexcept {
    struct stat status{};
    return descriptor >= 0 && fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode) &&
           status.st_ino == inode_.load();
  }
  // Whether there is one, and the program has not closed it.
  bool is_there() const noexcept { return is(descriptor_.load()); }
  bool is_below(std::uint64_t limit) const noexcept { return std::cmp_less(descriptor_.load(), limit); }
  // In the child of a fork, too.
  void close() noexcept {
    if (const int descriptor = descriptor_.exchange(-1); is(descriptor)) ::close(descriptor);
  }

 private:
  std::atomic<int> descriptor_{-1};
  std::atomic<std::uint64_t> inode_{0};
};

}  // namespace rota::client
