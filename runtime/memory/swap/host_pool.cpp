#include "runtime/memory/swap/host_pool.h"

#include <sys/mman.h>

#include "generated/driver_real.h"

namespace rota::memory {

namespace {

constexpr unsigned kPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE

void* map_pinned(std::uint64_t bytes) {
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (block == MAP_FAILED) return nullptr;
  // Each of these may be missing from a kernel, which costs speed or memory and nothing else.
  madvise(block, bytes, MADV_HUGEPAGE);
  madvise(block, bytes, MADV_DONTFORK);
  madvise(block, bytes, MADV_DONTDUMP);
  // Pinning touches every page: a memory cgroup that has no room kills instead of refusing, which rotad sees to by
  // promising no more than the host has (scheduler/core/quota.h).
  if (real::cuMemHostRegister_v2(block, bytes, kPortable) == api::CUDA_SUCCESS) return block;
  munmap(block, bytes);
  return nullptr;
}

}  // namespace

HostPool::~HostPool() {
  for (const auto& [bytes, blocks] : kept_) {
    for (void* block : blocks) munmap(block, bytes);
  }
}

void* HostPool::take(std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto same = kept_.find(bytes);
    if (same != kept_.end() && !same->second.empty()) {
      void* block = same->second.back();
      same->second.pop_back();
      return block;
    }
  }
  void* block = map_pinned(bytes);
  if (block == nullptr && trim() != 0) block = map_pinned(bytes);
  return block;
}

void HostPool::give(void* block, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  kept_[bytes].push_back(block);
}

std::uint64_t HostPool::trim() {
  std::map<std::uint64_t, std::vector<void*>> kept;
  std::uint64_t sum = 0;
  {
    const std::lock_guard lock(mutex_);
    kept.swap(kept_);
  }
  for (const auto& [bytes, blocks] : kept) {
    sum += bytes * blocks.size();
    for (void* block : blocks) {
      real::cuMemHostUnregister(block);
      munmap(block, bytes);
    }
  }
  return sum;
}

}  // namespace rota::memory
