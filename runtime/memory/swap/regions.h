// The accounting of memory that can be evicted: which address ranges there are, what lies in them, and which of their
// extents are on the GPU.
//
// A range ends with its context; a pool's span has none and can be moved by any context of its GPU. A free of an extent
// that is moving or being examined waits. A range that is not used any more is *cached* on the GPU, up to a part of the
// GPU, and serves the next allocation like it.
//
// Whether fresh memory may be mapped at once is decided together with whether the gate is open: under the lock, a range
// can be added as out of place only while the gate is closed, and the gate opens only while nothing is out of place.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/core/devices.h"
#include "runtime/core/function_ref.h"
#include "runtime/memory/backend.h"
#include "runtime/memory/swap/extent.h"
#include "runtime/memory/swap/mapper.h"
#include "runtime/memory/swap/swap_devices.h"
#include "scheduler/protocol/pins.h"

namespace rota::memory {

class Regions {
 public:
  using Lock = std::unique_lock<std::mutex>;
  using Ranges = std::map<std::uint64_t, Range>;  // by address

  Regions(SwapDevices& devices, Mapper& mapper, Store& store) : devices_(devices), mapper_(mapper), store_(store) {}

  // --- any thread, with no lock held

  // Whether any range was ever made. One load.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // The range that holds an address, freed or not.
  struct Found {
    api::CUcontext context = nullptr;
    std::uint64_t buffer_id = 0;  // not the driver's: stays the same wherever the range is
    int device = 0;
  };
  std::optional<Found> find(std::uint64_t address) const;
  // Whether a range that has not been freed begins here.
  bool begins(std::uint64_t address) const;
  // Whether any of these addresses is in a range, freed or not.
  bool overlaps(std::uint64_t address, std::uint64_t bytes) const;

  // The range that contains this address stays on the GPU until it is freed; it is in place and held there now. Returns
  // its GPU, unless it was already pinned for this reason.
  std::optional<int> pin(std::uint64_t address, protocol::Pin why);
  // From now on other processes have an allocation open in the range that contains this address and is held in place:
  // the range stays on the GPU until as many have been closed as were opened. Nothing: there is no such range, or it is
  // not in place.
  std::optional<Found> open_to_others(std::uint64_t address);
  // One of these allocations has been closed. `id`: of the range, which may have been freed. Returns the GPU if nothing
  // in the range is open any more.
  std::optional<int> closed_by_others(std::uint64_t address, std::uint64_t id);
  // Whether any has ever been open in the range that contains this address: the range then serves no other allocation.
  bool was_open(std::uint64_t address) const;
  // How many bytes are pinned, in all and by reason.
  std::uint64_t pinned_bytes(int device) const { return pinned_[static_cast<std::size_t>(device)].load(); }
  std::array<std::uint64_t, protocol::kPins> pinned_by(int device) const;
  // How many bytes are evicted.
  std::uint64_t out_bytes(int device) const { return out_[static_cast<std::size_t>(device)].load(); }
  // What has to be on the GPU at once when this process runs, in use or about to be: everything except cached ranges.
  std::atomic<std::uint64_t>& needed(int device) { return needed_[static_cast<std::size_t>(device)]; }
  std::uint64_t needed(int device) const { return needed_[static_cast<std::size_t>(device)].load(); }
  // How many extents of this GPU are not where work expects them; also whatever else keeps its gate closed.
  std::atomic<std::uint64_t>& out_of_place(int device) { return out_of_place_[static_cast<std::size_t>(device)]; }
  // Whether all memory of these GPUs is where work expects it.
  bool in_place(Devices devices) const;
  // Runs `work` if it is, under the lock that keeps allocations from ending up out of place during that.
  bool if_in_place(Devices devices, FunctionRef<void()> work);
  // The same for work that opens these GPUs' gates: from then on memory there may be written.
  bool use_if_in_place(Devices devices, FunctionRef<void()> open);
  // Nothing: another thread holds the lock, perhaps for ever: a signal handler may have interrupted it and not return.
  std::optional<bool> try_use_if_in_place(Devices devices, FunctionRef<void()> open);

  // The range that begins here is no longer used; unless it is pinned it may serve another allocation like it. Waits
  // for no work, only for its extents if they are moving.
  void free(std::uint64_t address);
  // Gives cached ranges of a GPU back to the driver, or to other processes, until they add up to this many bytes.
  // Returns the bytes. Waits for nothing.
  std::uint64_t drop_kept(int device, std::uint64_t bytes = UINT64_MAX, const Exchange& exchange = {});
  // The context has ended, and its ranges with it.
  void context_ended(api::CUcontext context);

  // --- the monitor, with no lock held

  // An extent is no longer moving, whether the move succeeded or not.
  void landed(std::uint64_t address);
  // See SwapBackend::context_failed() and release_all().
  std::uint64_t context_failed(api::CUcontext context, int device);
  void release_all();

  // --- the accounting itself: all that follows with the lock held

  [[nodiscard]] Lock lock() const { return Lock(mutex_); }
  // Waits until `is_so`, which changes only when a move ends.
  template <typename IsSo>
  void wait(Lock& lock, const IsSo& is_so) {
    landed_.wait(lock, is_so);
  }
  Ranges& ranges() { return ranges_; }
  const Range* range_at(std::uint64_t address) const;
  // The extent that begins here; null: there is none. `range`: set to the range that holds the address, if there is
  // one.
  Extent* extent_at(std::uint64_t address, Range** range = nullptr);
  // What GPUs besides the owner may do with plain memory of this GPU.
  Access& plain_access(int device) { return accounting_[static_cast<std::size_t>(device)].access; }
  const Access& access_of(const Range& range) { return range.access ? *range.access : plain_access(range.device); }
  // How many times the GPU's gate has opened.
  std::uint64_t opened(int device) const { return opened_[static_cast<std::size_t>(device)]; }
  // Whether the extent has been restored and the gate has not opened since: then it equals the host's copy.
  bool unused(const Range& range, const Extent& extent) const {
    return extent.in_place() && extent.came == opened(range.device);
  }
  // A range with no address yet, of this many bytes, in extents of at most `most` bytes. `may_begin_small`: the first
  // ones may be smaller, if no other range of the GPU begins so.
  Range cut(const Place& place, std::uint64_t bytes, std::uint64_t most, bool may_begin_small) const;
  // A cached range that serves this allocation from now on; nothing: there is none like it.
  std::optional<api::CUdeviceptr> reuse(const Range& wanted);
  // Adds a range. Its extents are all on the GPU, or none is.
  void insert(Range&& range);
  // The extent is not in place from now on, until landed().
  void begin_moving(const Range& range, Extent& extent);
  // The extent counts as evicted from now on, or as being on the GPU again.
  void count_out(const Range& range, const Extent& extent);
  void count_in(const Range& range, const Extent& extent);
  // The extent is mapped now, with the access `given` that applied when its mapping began: applies what has changed
  // since.
  void catch_up(const Range& range, const Extent& extent, const Access& given);

  // From now on memory that the program creates itself is not cached: others may have registered it.
  void cache_no_own() { caches_own_.store(false); }

 private:
  struct Accounting {
    Access access;  // of plain memory
    std::uint64_t cached = 0;
    int begin_small = 0;                              // ranges
    std::multimap<Like, std::uint64_t> cached_alike;  // address
  };

  static Like like(const Range& range) { return {.bytes = range.bytes, .own = range.own}; }
  bool open_if_in_place(Devices devices, FunctionRef<void()> open);
  void uncount(const Range& range);
  void set_pins(Range& range, std::uint8_t pins);
  std::uint64_t destroy(Range&& range, const Exchange& exchange = {});
  static Extent detach(Extent& extent);
  std::uint64_t release(std::vector<std::pair<int, Extent>>&& gone);

  SwapDevices& devices_;
  Mapper& mapper_;
  Store& store_;
  mutable std::mutex mutex_;  // the fields below, but for atomic ones
  std::condition_variable landed_;
  std::array<Accounting, kMaxDevices> accounting_;
  Ranges ranges_;
  std::array<std::atomic<std::uint64_t>, kMaxDevices> out_of_place_{};
  std::array<std::uint64_t, kMaxDevices> opened_ = [] {
    std::array<std::uint64_t, kMaxDevices> once{};
    once.fill(1);
    return once;
  }();
  std::array<std::atomic<std::uint64_t>, kMaxDevices> out_{};
  std::array<std::atomic<std::uint64_t>, kMaxDevices> pinned_{};
  std::array<std::array<std::atomic<std::uint64_t>, protocol::kPins>, kMaxDevices> pinned_by_{};
  std::array<std::atomic<std::uint64_t>, kMaxDevices> needed_{};
  std::uint64_t last_id_ = std::uint64_t{1} << 49;  // beyond the driver's, and those of stream_ordered.h
  std::atomic<bool> any_{false};
  std::atomic<bool> caches_own_{true};
};

}  // namespace rota::memory
