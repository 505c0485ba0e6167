#include "scheduler/server/sent_descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>

namespace rota::server {

namespace {

// Linux's number for NVIDIA's devices.
constexpr unsigned kNvidiaMajor = 195;

}  // namespace

bool may_be_memory(const Descriptor& descriptor) {
  if (fcntl(descriptor.get(), F_GET_SEALS) >= 0) return true;  // a memfd
  struct statx file{};
  return statx(descriptor.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &file) == 0 &&
         S_ISCHR(file.stx_mode) && file.stx_rdev_major == kNvidiaMajor;
}

}  // namespace rota::server
