#include "runtime/memory/swap/store/host_pool.h"

#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/core/own_thread.h"
#include "runtime/driver/context.h"
#include "runtime/memory/round_up.h"
#include "scheduler/base/host_memory.h"

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

// How long to wait after the host had no memory left. A judgment.
constexpr auto kPrepareAgain = 1s;

// How long to wait after this process's share of host memory was used up. rotad samples more often how much the others
// use. A judgment.
constexpr auto kShareAgain = 250ms;

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

// The kernel takes these pages from this node as long as it has free ones. It may refuse the request, as it does in
// containers without the right to make it: each page is then on the node of the thread that touches it first.
void prefer(void* begin, std::uint64_t bytes, int node) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  constexpr std::size_t kMostNodes = 1024;
  if (node < 0 || static_cast<std::size_t>(node) + 1 >= kMostNodes) return;
  std::array<unsigned long, kMostNodes / kBits> nodes{};
  nodes[static_cast<std::size_t>(node) / kBits] = 1UL << static_cast<std::size_t>(node) % kBits;
  syscall(SYS_mbind, begin, bytes, MPOL_PREFERRED, nodes.data(), kMostNodes, 0);
}

// How long an answer holds: checking the host's memory means reading some files.
constexpr auto kSampleAgain = 10ms;

}  // namespace

HostPool::HostPool() : left_([] { return available_to("self"); }) {
  for (std::atomic<int>& node : node_of_) node.store(kNotAsked, std::memory_order_relaxed);
}

HostPool::~HostPool() {
  for (const auto& [bytes, blocks] : cached_) {
    for (void* block : blocks) munmap(block, bytes);
  }
  if (growing_.block != nullptr) munmap(growing_.block, growing_.bytes);
}

int HostPool::node_of(int device) {
  std::atomic<int>& known = node_of_[static_cast<std::size_t>(device)];
  int node = known.load(std::memory_order_relaxed);
  if (node != kNotAsked) return node;
  // Drivers before CUDA 12.2 do not know this attribute.
  const api::CUresult result = real::cuDeviceGetAttribute(&node, api::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device);
  if (result != api::CUDA_SUCCESS || node < 0) node = kAnyNode;
  known.store(node, std::memory_order_relaxed);
  return node;
}

void* HostPool::map(std::uint64_t bytes, int node) {
  // Every page of it will be touched. A tenth of what is left is reserved for everything else, as in rotad, which
  // promises no more than there is (scheduler/server/limits.cpp); but others may have taken it since.
  if (left_() / 10 * 9 < bytes || !grow(bytes)) return nullptr;
  void* const block = map_aligned(bytes);
  if (block == nullptr) {
    shrink(bytes);
    return nullptr;
  }
  // A kernel may not have any of these, which only costs speed or memory.
  madvise(block, bytes, MADV_HUGEPAGE);
  madvise(block, bytes, MADV_DONTFORK);
  madvise(block, bytes, MADV_DONTDUMP);
  prefer(block, bytes, node);
  const std::lock_guard lock(mutex_);
  if (node != kAnyNode) nodes_.emplace(block, node);
  return block;
}

void HostPool::pin(void* block, std::uint64_t bytes) {
  const api::CUresult pinned = real::cuMemHostRegister_v2(block, bytes, kPortable);
  const bool is = pinned == api::CUDA_SUCCESS || pinned == api::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  {
    const std::lock_guard lock(mutex_);
    lapsed_.erase(block);
    if (is) {
      pinned_in_[block] = driver::current_context();
    } else {
      unpinned_.insert(block);
    }
  }
  if (is) return;
  static log::Once once;
  if (once.first()) {
    log::warn(
        "the driver cannot pin more host memory (error {}): evicted memory is copied to unpinned memory, which is "
        "slower; run fewer programs at a time, or raise the limit on locked memory",
        static_cast<int>(pinned));
  }
}

// False: the driver still uses the block, which returns to the cache.
bool HostPool::unmap(void* block, std::uint64_t bytes) {
  bool pinned = false;
  {
    const std::lock_guard lock(mutex_);
    pinned = unpinned_.erase(block) == 0 && prepared_.erase(block) == 0;
  }
  if (pinned) {
    const api::CUresult result = real::cuMemHostUnregister(block);
    // Otherwise the driver would go on using the old pages for whatever lies at this address later.
    if (result != api::CUDA_SUCCESS && result != api::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) {
      give(block, bytes);
      return false;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    nodes_.erase(block);
    pinned_in_.erase(block);
    lapsed_.erase(block);
  }
  munmap(block, bytes);
  shrink(bytes);
  return true;
}

void* HostPool::take(std::uint64_t bytes, int node) {
  void* block = nullptr;
  bool pinned = false;
  {
    const std::lock_guard lock(mutex_);
    const auto same = cached_.find(bytes);
    if (same != cached_.end()) {
      std::vector<void*>& blocks = same->second;
      const auto found = std::find_if(blocks.rbegin(), blocks.rend(), [&](void* each) { return suits(each, node); });
      if (found != blocks.rend()) {
        block = *found;
        blocks.erase(std::next(found).base());
        cached_bytes_ -= bytes;
        pinned = prepared_.erase(block) == 0 && !lapsed_.contains(block);
        publish();
      }
    }
  }
  const bool ready = block != nullptr;
  if (block == nullptr) block = map(bytes, node);
  while (block == nullptr && trim(bytes) != 0) block = map(bytes, node);
  if (block != nullptr && !ready) touch_at_once(static_cast<char*>(block), bytes);
  if (block != nullptr && !pinned) pin(block, bytes);
  return block;
}

void HostPool::pin_again(void* block, std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (!lapsed_.contains(block)) return;
  }
  pin(block, bytes);
}

void HostPool::context_ended(api::CUcontext context) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pinned_in_, [&](const auto& each) {
    if (each.second == context) lapsed_.insert(each.first);
    return each.second == context;
  });
}

bool HostPool::prepare(std::uint64_t bytes, int node) {
  // Others may need the remaining memory more than this process.
  if (std::chrono::steady_clock::now() < prepare_again_) return false;
  if (left_() / 10 * 9 < (growing_.block == nullptr ? bytes : growing_.bytes - growing_.done) + 2 * kLow) {
    end_growing();
    prepare_again_ = std::chrono::steady_clock::now() + kPrepareAgain;
    return false;
  }
  if (growing_.block == nullptr) {
    if (!may_prepare(bytes)) {
      prepare_again_ = std::chrono::steady_clock::now() + kShareAgain;
      return false;
    }
    growing_ = {.block = map(bytes, node), .bytes = bytes};
    if (growing_.block == nullptr) return false;
    const std::lock_guard lock(mutex_);
    prepared_.insert(growing_.block);
    growing_bytes_ = bytes;
    publish();
  }
  const std::uint64_t next = std::min(kPrepareAtOnce, growing_.bytes - growing_.done);
  touch(static_cast<char*>(growing_.block) + growing_.done, next);
  growing_.done += next;
  if (growing_.done != growing_.bytes) return true;
  {
    const std::lock_guard lock(mutex_);
    growing_bytes_ = 0;
  }
  give(growing_.block, growing_.bytes);
  growing_ = {};
  return true;
}

void HostPool::give(void* block, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  cached_[bytes].push_back(block);
  cached_bytes_ += bytes;
  publish();
}

void HostPool::end(void* block, std::uint64_t bytes) {
  unmap(block, bytes);
}

std::uint64_t HostPool::end_growing() {
  {
    const std::lock_guard lock(mutex_);
    growing_bytes_ = 0;
  }
  if (growing_.block != nullptr) unmap(growing_.block, growing_.bytes);
  return std::exchange(growing_, {}).done;
}

void HostPool::drop_prepared() {
  end_growing();
  std::vector<std::pair<void*, std::uint64_t>> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [bytes, blocks] : cached_) {
      const auto first =
          std::partition(blocks.begin(), blocks.end(), [this](void* block) { return !prepared_.contains(block); });
      for (auto block = first; block != blocks.end(); ++block) gone.emplace_back(*block, bytes);
      blocks.erase(first, blocks.end());
    }
    for (const auto& [block, bytes] : gone) cached_bytes_ -= bytes;
  }
  for (const auto& [block, bytes] : gone) unmap(block, bytes);
}

bool HostPool::has_prepared() const {
  const std::lock_guard lock(mutex_);
  return !prepared_.empty();
}

std::uint64_t HostPool::trim(std::uint64_t bytes) {
  std::uint64_t sum = end_growing();
  std::vector<std::pair<void*, std::uint64_t>> gone;
  {
    const std::lock_guard lock(mutex_);
    std::uint64_t chosen = sum;
    for (const bool prepared : {true, false}) {
      for (auto size = cached_.rbegin(); size != cached_.rend(); ++size) {
        std::erase_if(size->second, [&](void* block) {
          if (chosen >= bytes || prepared_.contains(block) != prepared) return false;
          gone.emplace_back(block, size->first);
          chosen += size->first;
          return true;
        });
      }
    }
    for (const auto& [block, size] : gone) cached_bytes_ -= size;
  }
  for (const auto& [block, size] : gone) {
    if (unmap(block, size)) sum += size;
  }
  return sum;
}

std::uint64_t HostPool::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::uint64_t HostPool::cached_bytes() const {
  const std::lock_guard lock(mutex_);
  return cached_bytes_;
}

std::size_t HostPool::cached(std::uint64_t bytes, int node) const {
  const std::lock_guard lock(mutex_);
  const auto same = cached_.find(bytes);
  if (same == cached_.end()) return 0;
  return static_cast<std::size_t>(
      std::count_if(same->second.begin(), same->second.end(), [&](void* block) { return suits(block, node); }));
}

// With the lock held.
bool HostPool::suits(void* block, int node) const {
  if (node == kAnyNode) return true;
  const auto found = nodes_.find(block);
  return found != nodes_.end() && found->second == node;
}

bool HostPool::low() {
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    if (bytes_ == 0) return false;
    if (now - sampled_ < kSampleAgain) return low_;
    sampled_ = now;
  }
  const bool low = left_() < kLow;
  const std::lock_guard lock(mutex_);
  return low_ = low;
}

// --- the share

void HostPool::follow(protocol::UsagePage* usage, const protocol::LeasePage* lease, std::function<void()> tell) {
  const std::lock_guard lock(mutex_);
  usage_ = usage;
  lease_ = lease;
  tell_ = std::move(tell);
  deficit_ = 0;
  publish();
}

// With the lock held, as the two that follow.
HostPool::Share HostPool::share() const {
  if (lease_ == nullptr || lease_->host_limited.load() == 0) return {};
  return {.most = lease_->host_most_bytes.load(), .spare = lease_->host_spare_most_bytes.load()};
}

std::uint64_t HostPool::spare() const {
  return std::min(bytes_, cached_bytes_ + growing_bytes_ + copies_);
}

void HostPool::publish() {
  if (usage_ == nullptr) return;
  usage_->host_spare_bytes.store(spare());
  usage_->host_bytes.store(bytes_);
}

// First published, then compared with the share, as pages.h requires.
bool HostPool::grow(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  publish();
  if (bytes_ <= share().most) return true;
  bytes_ -= bytes;
  refused_ = bytes;
  publish();
  return false;
}

void HostPool::shrink(std::uint64_t bytes) {
  bool others_wait = false;
  {
    const std::lock_guard lock(mutex_);
    bytes_ -= bytes;
    publish();
    others_wait = share().most != UINT64_MAX;
  }
  if (others_wait) tell();
}

void HostPool::tell() {
  std::function<void()> tell;
  {
    const std::lock_guard lock(mutex_);
    tell = tell_;
  }
  if (tell) tell();
}

bool HostPool::limited() const {
  const std::lock_guard lock(mutex_);
  return share().most != UINT64_MAX;
}

void HostPool::set_copies(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  copies_ = bytes;
  publish();
}

void HostPool::add_copies(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  // A thread may have freed memory that was counted.
  copies_ = bytes < 0 ? copies_ - std::min(copies_, static_cast<std::uint64_t>(-bytes))
                      : copies_ + static_cast<std::uint64_t>(bytes);
  publish();
}

std::uint64_t HostPool::excess() const {
  const std::lock_guard lock(mutex_);
  const Share allowed = share();
  const std::uint64_t has = spare();
  const std::uint64_t too_much = bytes_ - std::min(bytes_, allowed.most);
  return std::max(has - std::min(has, allowed.spare), std::min(has, too_much));
}

bool HostPool::may_grow() const {
  const std::lock_guard lock(mutex_);
  const std::uint64_t most = share().most;
  return refused_ <= most && bytes_ <= most - refused_;
}

bool HostPool::may_prepare(std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const Share allowed = share();
  const auto within = [bytes](std::uint64_t now, std::uint64_t most) { return bytes <= most && now <= most - bytes; };
  return within(bytes_, allowed.most) && within(spare(), allowed.spare);
}

void HostPool::set_deficit(std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(deficit_, bytes) == bytes) return;
    if (usage_ != nullptr) usage_->host_lacking_bytes.store(bytes);
  }
  tell();
}

}  // namespace rota::memory
