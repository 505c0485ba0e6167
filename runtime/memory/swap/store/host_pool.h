// Host memory that GPU memory is copied to: pinned, in huge pages where the kernel has them, on the GPU's NUMA node if
// that has free memory and the driver names it, not inherited by a forked child and not part of a core dump.
//
// Pinning costs more than the copy itself (measured on an H200: 0.17 s for each GiB, a copy of it 0.02 s), so pinned
// memory is cached for the next time, as long as the host has enough memory. Nine tenths of that time the kernel spends
// on allocating pages, which needs no driver (measured on an H100, 128 MiB: 22 ms, and then 3 ms to pin them; while the
// driver pins, no thread of the process can launch). So blocks can be prepared, page by page, before they are needed,
// and are pinned when they are needed; a block that is needed at once is prepared by several threads. A block that the
// driver does not pin (it may have a limit, as under WSL) is used anyway: copies then take longer. A block that was
// pinned in a context that has ended is pinned once more before it is used again: a reset unpins it (measured on an
// H100). If the host has no memory for a block, the pool refuses it, since a full cgroup kills instead of refusing.
//
// Limits on host memory that processes share count all of it (scheduler/limits/quota.h). So the pool says in rotad's
// page what it has and what of that is reclaimable (*spare*), and grows only within its share. Only the monitor makes
// it grow.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/memory/ledger.h"
#include "scheduler/protocol/pages.h"

namespace rota::memory {

class HostPool {
 public:
  // Below this the host is *low*: whatever is reclaimable is released. Eight of the largest extents. A judgment.
  static constexpr std::uint64_t kLow = std::uint64_t{1} << 30;

  // Bytes that this process may still take, given the machine and its cgroups.
  using Left = std::function<std::uint64_t()>;

  HostPool();
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;
  // For tests, before there are blocks.
  void set_left(Left left) { left_ = std::move(left); }

  // The host's NUMA node that is closest to a GPU; kAnyNode: not known. Nodes below are preferences.
  static constexpr int kAnyNode = -1;
  int node_of(int device);

  // A block of exactly `bytes`, a multiple of the page size, that every context can copy from and to; null if the host
  // has none, even after cached blocks of other sizes have been released. With some context current.
  void* take(std::uint64_t bytes, int node = kAnyNode);
  void give(void* block, std::uint64_t bytes);
  // Before a copy from or to a taken block: pins it if the context in which it was pinned has ended. With some context
  // current.
  void pin_again(void* block, std::uint64_t bytes);
  // Calls no driver.
  void context_ended(api::CUcontext context);
  // Prepares the next few MiB of a block of `bytes`, which take() finds once it is complete. False: the host has none
  // to spare. No context need be current.
  bool prepare(std::uint64_t bytes, int node = kAnyNode);
  // Releases prepared memory: the host needs it, or this process no longer does. No context need be current.
  void drop_prepared();
  // Releases a block to the host at once. With some context current.
  void end(void* block, std::uint64_t bytes);
  // Releases blocks that are not taken to the host, until they add up to this many bytes: those first that were never
  // pinned. Returns the bytes. With some context current.
  std::uint64_t trim(std::uint64_t bytes = UINT64_MAX);

  // Bytes of host memory, taken or cached; and those cached.
  std::uint64_t bytes() const;
  std::uint64_t cached_bytes() const;
  // Blocks of this size that are not taken.
  std::size_t cached(std::uint64_t bytes, int node = kAnyNode) const;
  // Whether there are prepared pages that are not taken.
  bool has_prepared() const;
  // Whether the host is low; the answer may be some milliseconds old. False while there are no blocks.
  bool low();

  // --- the share that rotad allows

  // rotad's pages; null: there is none, and no limit. The pages are never unmapped. `tell` is called, by any thread,
  // when rotad has to read what this pool publishes.
  void follow(protocol::UsagePage* usage, const protocol::LeasePage* lease, std::function<void()> tell);
  // Whether there is a limit.
  bool limited() const;
  // The bytes of blocks that are taken but reclaimable, since their contents are on the GPU as well; and changes of
  // that number. The monitor counts them.
  void set_copies(std::uint64_t bytes);
  void add_copies(std::int64_t bytes);
  // How much of the reclaimable memory has to be released.
  std::uint64_t excess() const;
  // Whether others have given back enough for the last block that the share did not allow.
  bool may_grow() const;
  // How much more this process needs at once than its share is; 0: nothing.
  void set_deficit(std::uint64_t bytes);

 private:
  void* map(std::uint64_t bytes, int node);
  bool grow(std::uint64_t bytes);
  void shrink(std::uint64_t bytes);
  void tell();
  struct Share {
    std::uint64_t most = UINT64_MAX;
    std::uint64_t spare = UINT64_MAX;
  };
  Share share() const;
  std::uint64_t spare() const;
  void publish();
  bool may_prepare(std::uint64_t bytes) const;
  bool suits(void* block, int node) const;
  void pin(void* block, std::uint64_t bytes);
  bool unmap(void* block, std::uint64_t bytes);
  std::uint64_t end_growing();  // bytes that it had

  Left left_;
  mutable std::mutex mutex_;                            // the fields below
  std::map<std::uint64_t, std::vector<void*>> cached_;  // by size
  std::set<void*> unpinned_;                            // blocks, taken or cached
  std::set<void*> prepared_;                            // cached ones, and the growing one: not pinned yet
  std::map<void*, api::CUcontext> pinned_in_;           // blocks, taken or cached
  std::set<void*> lapsed_;                              // blocks that were pinned in a context that has ended
  std::map<void*, int> nodes_;                          // blocks that prefer one, taken or cached
  struct Growing {
    void* block = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t done = 0;
  } growing_;                                              // the one that is being prepared; the monitor's
  std::chrono::steady_clock::time_point prepare_again_{};  // after the host had none to spare; the monitor's
  std::uint64_t bytes_ = 0;
  std::uint64_t cached_bytes_ = 0;
  bool low_ = false;
  std::chrono::steady_clock::time_point sampled_{};
  protocol::UsagePage* usage_ = nullptr;
  const protocol::LeasePage* lease_ = nullptr;
  std::function<void()> tell_;
  std::uint64_t growing_bytes_ = 0;  // of the block that is being prepared
  std::uint64_t copies_ = 0;
  std::uint64_t deficit_ = 0;
  std::uint64_t refused_ = 0;  // the size of the last block that the share did not allow
  static constexpr int kNotAsked = -2;
  std::array<std::atomic<int>, kMaxDevices> node_of_;  // no lock
};

}  // namespace rota::memory
