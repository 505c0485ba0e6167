#include "runtime/driver/memory_descriptor.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <utility>

namespace rota::driver {

namespace {

// Further descriptors are closed, which gives their memory back to the driver. With extents of 128 MiB this is 64 GiB.
constexpr std::size_t kMostDescriptors = 512;

// The descriptors of GPU memory that this process has, each as its number plus one; 0: free place.
constinit std::array<std::atomic<int>, kMostDescriptors> descriptors{};

// Whether the program has enough descriptors for itself in addition to one with this number.
bool leaves_enough(int number) {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(number) < limit.rlim_cur / 4 * 3;
}

}  // namespace

MemoryDescriptor::MemoryDescriptor(Descriptor descriptor) : descriptor_(std::move(descriptor)) {
  if (descriptor_ && leaves_enough(descriptor_.get())) {
    for (; place_ < descriptors.size(); ++place_) {
      int free = 0;
      if (descriptors[place_].compare_exchange_strong(free, descriptor_.get() + 1)) return;
    }
  }
  descriptor_ = Descriptor();
}

MemoryDescriptor::~MemoryDescriptor() {
  // Before the descriptor is closed: a child forked in between must not close another one with the same number.
  if (descriptor_) descriptors[place_].store(0);
}

void MemoryDescriptor::close_inherited() {
  for (std::atomic<int>& each : descriptors) {
    if (const int inherited = each.exchange(0); inherited != 0) close(inherited - 1);
  }
}

}  // namespace rota::driver
