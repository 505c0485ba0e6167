// Reads small files whole, and reserves space for large ones, inside other people's programs: what the writers of
// traces and accounts share.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace rota::files {

// At most `limit` bytes; empty if it cannot be read.
inline std::string read_small(const std::string& path, std::size_t limit) {
  std::string text(limit, '\0');
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  std::size_t length = 0;
  while (length < limit) {
    const ssize_t got = ::read(file, text.data() + length, limit - length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    length += static_cast<std::size_t>(got);
  }
  ::close(file);
  text.resize(length);
  return text;
}

// Reserves disk space for this part of the file; returns 0 or an errno.
inline int reserve(int file, off_t offset, off_t bytes) {
  // Beyond RLIMIT_FSIZE the kernel would not only refuse but send SIGXFSZ, which ends the program.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<rlim_t>(offset) + static_cast<rlim_t>(bytes) > limit.rlim_cur) {
    return EFBIG;
  }
  int error = 0;
  do {
    error = posix_fallocate(file, offset, bytes);
  } while (error == EINTR);
  return error;
}

// Whether these bytes of a mapped file, which were reserved, can be written. If a file system has promised space that
// it does not have, this says so, where a plain store would raise SIGBUS.
inline bool populate(void* begin, std::size_t bytes) {
  return madvise(begin, bytes, MADV_POPULATE_WRITE) == 0 || (errno != EFAULT && errno != EHWPOISON);
}

}  // namespace rota::files
