#include "runtime/memory/swap/host_pool.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/core/own_thread.h"
#include "runtime/memory/round_up.h"
#include "scheduler/protocol/host_memory.h"

namespace rota::memory {

using namespace std::chrono_literals;

namespace {

constexpr unsigned kPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE

// The alignment of blocks: otherwise the kernel would not use huge pages for the smallest extents.
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

void* map_aligned(std::uint64_t bytes) {
  const std::uint64_t most = bytes + kHugePage;
  void* const all = mmap(nullptr, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(all);
  const std::uintptr_t block = round_up(start, kHugePage);
  if (block != start) munmap(all, block - start);
  if (block + bytes != start + most) munmap(reinterpret_cast<void*>(block + bytes), start + most - block - bytes);
  return reinterpret_cast<void*>(block);
}

// How much is prepared at a time: the monitor does nothing else for a millisecond or two. A judgment.
constexpr std::uint64_t kPrepareAtOnce = std::uint64_t{8} << 20;

// How long to wait after the host had none to spare. A judgment.
constexpr auto kPrepareAgain = 1s;

// Makes the kernel allocate the pages.
void touch(char* begin, std::uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return;
#endif
  constexpr std::uint64_t kPage = 4096;
  for (std::uint64_t at = 0; at < bytes; at += kPage) *static_cast<volatile char*>(begin + at) = 0;
}

// With as many threads as the process has processors, up to four: one gets 6 GB/s (measured on an H100), and a program
// waits for it. Without further threads if there are none to be had.
void touch_at_once(char* block, std::uint64_t bytes) {
  constexpr std::uint64_t kAtLeast = std::uint64_t{16} << 20;
  constexpr std::uint64_t kMostThreads = 4;
  cpu_set_t processors;
  CPU_ZERO(&processors);
  sched_getaffinity(0, sizeof processors, &processors);
  const auto parts = std::clamp<std::uint64_t>(
      std::min<std::uint64_t>(bytes / kAtLeast, static_cast<std::uint64_t>(CPU_COUNT(&processors))), 1, kMostThreads);
  const std::uint64_t each = round_up((bytes + parts - 1) / parts, kHugePage);
  struct Part {
    char* begin;
    std::uint64_t bytes;
    pthread_t thread;
    bool runs;
  };
  std::array<Part, kMostThreads> all{};
  for (std::uint64_t number = 0, at = 0; at < bytes; ++number, at += each) {
    Part& part = all[number];
    part = {.begin = block + at, .bytes = std::min(each, bytes - at), .thread = {}, .runs = false};
    const auto run = [](void* own) -> void* {
      touch(static_cast<Part*>(own)->begin, static_cast<Part*>(own)->bytes);
      return nullptr;
    };
    part.runs = at + each < bytes && create_own_thread(&part.thread, run, &part) == 0;
  }
  for (const Part& part : all) {
    if (!part.runs && part.bytes != 0) touch(part.begin, part.bytes);
  }
  for (const Part& part : all) {
    if (part.runs) pthread_join(part.thread, nullptr);
  }
}

// Checking the host's memory means reading some files.
constexpr auto kLookAgain = 10ms;

}  // namespace

HostPool::HostPool() : left_([] { return protocol::available_to("self"); }) {}

HostPool::~HostPool() {
  for (const auto& [bytes, blocks] : kept_) {
    for (void* block : blocks) munmap(block, bytes);
  }
  if (growing_.block != nullptr) munmap(growing_.block, growing_.bytes);
}

void* HostPool::map(std::uint64_t bytes) {
  // Every page of it will be touched. A tenth of what is left is reserved for everything else, as in rotad, which
  // promises no more than there is (scheduler/server/limits.cpp); but others may have taken it since.
  if (left_() / 10 * 9 < bytes) return nullptr;
  void* const block = map_aligned(bytes);
  if (block == nullptr) return nullptr;
  // A kernel may lack any of these, which only costs speed or memory.
  madvise(block, bytes, MADV_HUGEPAGE);
  madvise(block, bytes, MADV_DONTFORK);
  madvise(block, bytes, MADV_DONTDUMP);
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  return block;
}

void HostPool::pin(void* block, std::uint64_t bytes) {
  const api::CUresult pinned = real::cuMemHostRegister_v2(block, bytes, kPortable);
  if (pinned == api::CUDA_SUCCESS) return;
  {
    const std::lock_guard lock(mutex_);
    unpinned_.insert(block);
  }
  static log::Once once;
  if (once.first()) {
    log::warn(
        "the driver cannot pin more host memory (error {}): what leaves the GPU is copied to unpinned memory, which is "
        "slower; run fewer programs at a time, or raise the limit on locked memory",
        static_cast<int>(pinned));
  }
}

void HostPool::unmap(void* block, std::uint64_t bytes) {
  bool pinned = false;
  {
    const std::lock_guard lock(mutex_);
    pinned = unpinned_.erase(block) == 0 && prepared_.erase(block) == 0;
  }
  if (pinned) {
    const api::CUresult result = real::cuMemHostUnregister(block);
    // Otherwise the driver would go on using the old pages for whatever lies at this address later.
    if (result != api::CUDA_SUCCESS && result != api::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) return give(block, bytes);
  }
  munmap(block, bytes);
  const std::lock_guard lock(mutex_);
  bytes_ -= bytes;
}

void* HostPool::take(std::uint64_t bytes) {
  void* block = nullptr;
  bool pinned = false;
  {
    const std::lock_guard lock(mutex_);
    const auto same = kept_.find(bytes);
    if (same != kept_.end() && !same->second.empty()) {
      block = same->second.back();
      same->second.pop_back();
      kept_bytes_ -= bytes;
      pinned = prepared_.erase(block) == 0;
    }
  }
  const bool ready = block != nullptr;
  if (block == nullptr) block = map(bytes);
  if (block == nullptr && trim() != 0) block = map(bytes);
  if (block != nullptr && !ready) touch_at_once(static_cast<char*>(block), bytes);
  if (block != nullptr && !pinned) pin(block, bytes);
  return block;
}

bool HostPool::prepare(std::uint64_t bytes) {
  // Others may need the remaining memory more than this process.
  if (std::chrono::steady_clock::now() < prepare_again_) return false;
  if (left_() / 10 * 9 < (growing_.block == nullptr ? bytes : growing_.bytes - growing_.done) + 2 * kLow) {
    end_growing();
    prepare_again_ = std::chrono::steady_clock::now() + kPrepareAgain;
    return false;
  }
  if (growing_.block == nullptr) {
    growing_ = {.block = map(bytes), .bytes = bytes};
    if (growing_.block == nullptr) return false;
    const std::lock_guard lock(mutex_);
    prepared_.insert(growing_.block);
  }
  const std::uint64_t next = std::min(kPrepareAtOnce, growing_.bytes - growing_.done);
  touch(static_cast<char*>(growing_.block) + growing_.done, next);
  growing_.done += next;
  if (growing_.done != growing_.bytes) return true;
  give(growing_.block, growing_.bytes);
  growing_ = {};
  return true;
}

void HostPool::give(void* block, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  kept_[bytes].push_back(block);
  kept_bytes_ += bytes;
}

void HostPool::end(void* block, std::uint64_t bytes) {
  unmap(block, bytes);
}

std::uint64_t HostPool::end_growing() {
  if (growing_.block != nullptr) unmap(growing_.block, growing_.bytes);
  return std::exchange(growing_, {}).done;
}

void HostPool::drop_prepared() {
  end_growing();
  std::vector<std::pair<void*, std::uint64_t>> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [bytes, blocks] : kept_) {
      const auto first =
          std::partition(blocks.begin(), blocks.end(), [this](void* block) { return !prepared_.contains(block); });
      for (auto block = first; block != blocks.end(); ++block) gone.emplace_back(*block, bytes);
      blocks.erase(first, blocks.end());
    }
    for (const auto& [block, bytes] : gone) kept_bytes_ -= bytes;
  }
  for (const auto& [block, bytes] : gone) unmap(block, bytes);
}

bool HostPool::has_prepared() const {
  const std::lock_guard lock(mutex_);
  return !prepared_.empty();
}

std::uint64_t HostPool::trim() {
  std::uint64_t sum = end_growing();
  std::map<std::uint64_t, std::vector<void*>> kept;
  {
    const std::lock_guard lock(mutex_);
    kept.swap(kept_);
    sum += std::exchange(kept_bytes_, 0);
  }
  for (const auto& [bytes, blocks] : kept) {
    for (void* block : blocks) unmap(block, bytes);
  }
  return sum;
}

std::uint64_t HostPool::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::uint64_t HostPool::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

std::size_t HostPool::kept(std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto same = kept_.find(bytes);
  return same == kept_.end() ? 0 : same->second.size();
}

bool HostPool::low() {
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    if (bytes_ == 0) return false;
    if (now - looked_ < kLookAgain) return low_;
    looked_ = now;
  }
  const bool low = left_() < kLow;
  const std::lock_guard lock(mutex_);
  return low_ = low;
}

}  // namespace rota::memory
