// A file descriptor that its owner closes. A negative number means none.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace rota {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  // Preserves errno, which may hold the reason for closing.
  ~Descriptor() {
    if (number_ < 0) return;
    const int error = errno;
    // Not retried after EINTR: Linux has closed the descriptor by then, and its number may have been reused.
    close(number_);
    errno = error;
  }

  explicit operator bool() const { return number_ >= 0; }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

}  // namespace rota
