#include "runtime/client/spare_descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "scheduler/base/above_standard.h"

namespace rota::client {

namespace {

// A negative number: none is left.
int make_spare(rlim_t limit) {
  const int made = above_standard(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (made < 0) return made;
  const auto first = std::min<rlim_t>(SpareDescriptors::kFirst, limit - SpareDescriptors::kMost);
  const int high = fcntl(made, F_DUPFD_CLOEXEC, static_cast<int>(first));
  if (high < 0) return made;
  ::close(made);
  return high;
}

}  // namespace

void SpareDescriptors::fill(std::size_t count) noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < kLeastLimit) return close_all();
  std::size_t kept = 0;
  for (InheritedSocket& spare : all_) {
    // A number that the limit, lowered since, no longer allows would not be given out again.
    if (kept == count || !spare.is_below(limit.rlim_cur)) spare.close();
    if (kept == count) continue;
    if (!spare.is_there()) {
      const int made = make_spare(limit.rlim_cur);
      if (made < 0) continue;
      spare.keep(made);
    }
    ++kept;
  }
}

void SpareDescriptors::release(std::size_t count) noexcept {
  for (InheritedSocket& spare : all_) {
    if (count == 0) return;
    if (spare.is_there()) --count;
    spare.close();
  }
}

std::size_t SpareDescriptors::count() const noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(all_, &InheritedSocket::is_there));
}

}  // namespace rota::client
