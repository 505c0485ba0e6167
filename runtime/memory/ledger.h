// The ledger: every live allocation of this process, and how many bytes each GPU carries for it. It is the only source
// for the limit, for cuMemGetInfo and for every free, since memory allocated by one function may be freed by another.
//
// Bytes are reserved before the driver is called and released when their entry is removed, in one atomic word per GPU:
// two threads cannot exceed a limit together, and no update is lost. From add() on, an entry owns its bytes: the thread
// that removes it releases them, once.
//
// Entries are found by any address inside them. They lie in levels by size, each cut into regions at least as large as
// its entries: an entry touches two regions at most. It lies in the shard of the region in which it begins, and the
// region that it reaches into, if any, has a note of it. So a look-up takes one lock per level in use, two where the
// address is just behind a region's edge, and threads contend only if their addresses share a shard. Which level holds
// the entry that begins at an address is nearly always seen without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/core/devices.h"
#include "runtime/memory/spare_nodes.h"

namespace rota::memory {

using rota::Devices;
using rota::kAllDevices;
using rota::kMaxDevices;
// Charged to no GPU: host memory, and memory that another process exported and is charged for.
inline constexpr int kNobody = -1;

// Which function allocated it.
inline constexpr std::size_t kRoutes = 10;
enum class Route : std::uint8_t {
  kPlain,     // cuMemAlloc or cuMemAllocPitch
  kSmall,     // cuMemAlloc, too small to convert where larger ones are
  kManaged,   // the program's own cuMemAllocManaged
  kPool,      // stream-ordered, from a pool of the driver's
  kServed,    // stream-ordered, served by rota instead of a pool of the driver (stream_ordered.h)
  kShared,    // cuMemAlloc or cuMemAllocPitch, cut by rota from a shared span (stream_ordered.h)
  kArray,     // a CUarray or CUmipmappedArray; the address is its handle with kHandleBit
  kPhysical,  // cuMemCreate; has no address of its own (physical.h)
  kMapping,   // cuMemMap of such memory, which is charged there
  kGraph,     // what graphs allocate; has no entry (graphs.h)
};

// Who serves it.
enum class Backing : std::uint8_t {
  kDevice,   // memory of the GPU, which stays there
  kUnified,  // Unified Memory, which the driver moves
  kSwapped,  // extents that rota moves (swap/swap.h)
  kHost,     // memory of the host
};

struct Kind {
  Route route;
  Backing backing;

  static const Kind kPlain, kSmall, kConverted, kManaged, kAsync, kManagedPool, kHostPool, kServed, kShared, kArray,
      kPhysical, kMapping, kMovingPhysical, kMovingMapping, kGraph;
  friend bool operator==(const Kind&, const Kind&) = default;

  // Whether there can be no more of it than the GPU has, with or without rota. There can be more of the program's own
  // managed memory.
  constexpr bool bound_to_gpu() const {
    return backing == Backing::kDevice || backing == Backing::kSwapped || converted();
  }
  // Whether it can be evicted while others run.
  constexpr bool movable() const { return backing == Backing::kUnified || backing == Backing::kSwapped; }
  // Whether it is part of a larger allocation in the driver.
  constexpr bool from_heap() const { return route == Route::kServed || route == Route::kShared; }
  constexpr bool stream_ordered() const { return route == Route::kPool || route == Route::kServed; }
  // Plain memory for the program, but something else for the driver.
  constexpr bool converted() const {
    return movable() && (route == Route::kPlain || route == Route::kServed || route == Route::kShared);
  }
};
inline constexpr Kind Kind::kPlain{Route::kPlain, Backing::kDevice};
inline constexpr Kind Kind::kSmall{Route::kSmall, Backing::kDevice};
inline constexpr Kind Kind::kConverted{Route::kPlain, Backing::kUnified};
inline constexpr Kind Kind::kManaged{Route::kManaged, Backing::kUnified};
inline constexpr Kind Kind::kAsync{Route::kPool, Backing::kDevice};
inline constexpr Kind Kind::kManagedPool{Route::kPool, Backing::kUnified};
inline constexpr Kind Kind::kHostPool{Route::kPool, Backing::kHost};
inline constexpr Kind Kind::kServed{Route::kServed, Backing::kUnified};
inline constexpr Kind Kind::kShared{Route::kShared, Backing::kUnified};
inline constexpr Kind Kind::kArray{Route::kArray, Backing::kDevice};
inline constexpr Kind Kind::kPhysical{Route::kPhysical, Backing::kDevice};
inline constexpr Kind Kind::kMapping{Route::kMapping, Backing::kDevice};
inline constexpr Kind Kind::kMovingPhysical{Route::kPhysical, Backing::kSwapped};
inline constexpr Kind Kind::kMovingMapping{Route::kMapping, Backing::kSwapped};
inline constexpr Kind Kind::kGraph{Route::kGraph, Backing::kDevice};

// Handles of arrays are host addresses. This bit puts them beyond every device address, so that no address lies
// "inside" an array.
inline constexpr std::uint64_t kHandleBit = std::uint64_t{1} << 63;
inline std::uint64_t address_of_handle(const void* handle) {
  return reinterpret_cast<std::uintptr_t>(handle) | kHandleBit;
}

// What an allocation's life depends on.
struct Owner {
  enum class Kind : std::uint8_t {
    kNone,
    kContext,   // freed when the context is destroyed
    kPool,      // a pool's: outlives contexts (measured on an H200: even the reset of a primary one)
    kPhysical,  // a mapping: `id` is the allocation's number in physical.h or own_physical.h
  };
  Kind kind = Kind::kNone;
  std::uint64_t id = 0;

  static Owner of(api::CUcontext context) { return {Kind::kContext, reinterpret_cast<std::uintptr_t>(context)}; }
  static Owner of(api::CUmemoryPool pool) { return {Kind::kPool, reinterpret_cast<std::uintptr_t>(pool)}; }
  friend bool operator==(const Owner&, const Owner&) = default;
};

struct Allocation {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  Owner owner{};
  int device = 0;  // the GPU that it is charged to, or kNobody
  Kind kind = Kind::kPlain;
  // The placement that the program itself last requested: all of it on the GPU that it is charged to; or any of it
  // elsewhere.
  enum class Placed : std::uint8_t { kUnsaid, kHere, kElsewhere };
  Placed placed = Placed::kUnsaid;
  bool synchronous = false;  // the program wants sets and copies of it to wait (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
  // The ledger's own:
  bool freeing = false;      // being freed by the driver, or waiting for its stream to reach the free
  bool charged = true;       // its bytes are in the sums
  std::uint64_t made = 0;    // clock() of its GPU when it was added
  std::uint64_t serial = 0;  // distinguishes it from a later one at the same address
  std::uint16_t module = 0;  // whose code allocated it (account.h); 0: not known
};

class Ledger {
 public:
  Ledger();

  // The most that may be reserved on a GPU. Set before memory is taken there; a limit below what is live refuses all
  // further allocations and takes nothing away.
  void set_limit(int device, std::uint64_t bytes);
  std::uint64_t limit(int device) const;
  // The most of it that may be memory which without rota would have to be on the GPU.
  void set_capacity(int device, std::uint64_t bytes);
  std::uint64_t capacity(int device) const;

  // Reserves memory for an allocation that is about to be made; returns false and reserves nothing if it does not fit.
  [[nodiscard]] bool reserve(int device, std::uint64_t bytes, Kind kind);
  // The same for memory that the driver has already allocated: it exists, whatever the limit says.
  void charge(int device, std::uint64_t bytes, Kind kind);
  void release(int device, std::uint64_t bytes, Kind kind);
  // Reserved memory is *pending* until the driver has given it. settle(): it has. cancel(): it will not, and the
  // bytes are released.
  void settle(int device, std::uint64_t bytes, Kind kind);
  void cancel(int device, std::uint64_t bytes, Kind kind);
  // live_bytes() and fixed_bytes() without pending memory that cannot be evicted.
  struct Settled {
    std::uint64_t bytes = 0;
    std::uint64_t fixed = 0;
  };
  Settled settled(int device) const;
  // Reserved bytes: what is live plus what is being allocated right now.
  std::uint64_t live_bytes(int device) const { return sum(device, &Sum::bytes); }
  // The part of them that is Kind::kSmall.
  std::uint64_t small_bytes(int device) const { return sum(device, &Sum::small); }
  // The part of them that cannot be evicted.
  std::uint64_t fixed_bytes(int device) const { return sum(device, &Sum::fixed); }
  // The part of them that came by one route.
  std::uint64_t bytes_by(int device, Route route) const;

  // Adds an allocation whose bytes are reserved (unless it has `charged = false`). An entry that still exists at this
  // address is removed: the driver has reused the address.
  void add(Allocation allocation);
  // The entry that begins at `address` is about to be freed by the driver; only one of several threads gets it. It
  // stays an entry until finish_free(), or is live again after cancel_free(), if the driver refused.
  std::optional<Allocation> begin_free(std::uint64_t address);
  void finish_free(const Allocation& allocation);
  void cancel_free(const Allocation& allocation);
  // finish_free() of an entry whose bytes stay charged: returns how many, which the caller releases. 0 if the entry was
  // already gone.
  std::uint64_t hand_over(const Allocation& allocation);
  // The program's use of an entry that is being freed is over, although the driver has not freed it yet: its bytes are
  // no longer charged.
  void uncharge(const Allocation& allocation);
  // For the entry that contains `address`.
  void set_synchronous(std::uint64_t address, bool synchronous);
  // For every entry in the range: the program wants it on this GPU or elsewhere (-1), or withdraws that (nothing).
  void set_placed(std::uint64_t address, std::uint64_t bytes, std::optional<int> device);
  // How many entries a GPU has had: distinguishes older entries from newer ones. Below kMaxDevices.
  std::uint64_t clock(int device) const;
  // A number that changes with each entry that is added or removed.
  std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  // The entry that contains `address`. Prefers a live one to one that is being freed.
  std::optional<Allocation> find(std::uint64_t address) const;
  // Removes the entries of one kind that begin in [address, address + size), in no order. Their bytes stay reserved,
  // for add() or to be released by the caller.
  std::vector<Allocation> take_range(std::uint64_t address, std::uint64_t size, Kind kind);
  // The same for the entry of this kind that begins at `address`, if there is one.
  void take_at(std::uint64_t address, Kind kind);
  // An owner has ended, and its memory with it: removes and releases its entries. Returns how many there were.
  std::size_t drop(const Owner& owner);
  // Copies of the entries of one kind on one GPU, in order of address; kAll: including those that are being freed.
  enum class Listed : std::uint8_t { kLive, kAll };
  std::vector<Allocation> list(int device, Kind kind, Listed which = Listed::kLive) const;
  // How many there are. Reads every shard.
  std::size_t entries() const;

 private:
  static constexpr std::size_t kShards = 64;
  // Entries of up to 64 KiB, 2 MiB and 512 MiB, and larger ones. Their regions are four times as large, so that few
  // entries reach into a second one; the larger ones, which are few, lie in a single region.
  static constexpr std::array<unsigned, 4> kSizeBits{16, 21, 29, 63};
  static constexpr std::array<unsigned, 4> kRegionBits{18, 23, 31, 63};

  // An entry that reaches into a region from the previous one.
  struct Note {
    std::uint64_t address;
    std::uint64_t serial;
  };
  struct alignas(64) Shard {
    using Entries = std::map<std::uint64_t, Allocation>;    // by first address
    using Notes = std::unordered_map<std::uint64_t, Note>;  // by region

    // How many entries begin at addresses like this one: without the lock. 0: none begins there.
    std::atomic<std::uint32_t>& like(std::uint64_t address) { return starts[address * 0x9e3779b97f4a7c15u >> 60]; }
    bool may_begin(std::uint64_t address) { return like(address).load(std::memory_order_acquire) != 0; }
    // All under the lock.
    void add(const Allocation& allocation);
    Entries::iterator erase(Entries::iterator entry);
    void add_note(std::uint64_t region, const Note& note);
    void erase_note(Notes::iterator note) { spare_notes.erase(notes, note); }

    mutable std::mutex mutex;
    Entries entries;
    Notes notes;
    std::uint64_t serials = 0;
    SpareNodes<Entries> spare_entries;
    SpareNodes<Notes> spare_notes;
    std::array<std::atomic<std::uint32_t>, 16> starts{};
  };
  struct Level {
    std::array<Shard, kShards> shards;
    std::atomic<bool> used{false};  // there has been an entry
  };
  struct alignas(64) Sum {
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> fixed{0};
    std::atomic<std::uint64_t> pending{0};  // of `fixed`
    std::atomic<std::uint64_t> small{0};
    std::atomic<std::uint64_t> bound{0};  // what counts against the capacity
    std::atomic<std::uint64_t> limit{UINT64_MAX};
    std::atomic<std::uint64_t> capacity{UINT64_MAX};
    std::atomic<std::uint64_t> made{0};
    std::array<std::atomic<std::uint64_t>, kRoutes> by_route{};
  };
  using Levels = std::array<Level, kRegionBits.size()>;

  std::uint64_t sum(int device, std::atomic<std::uint64_t> Sum::* what) const {
    return device >= 0 && device < kMaxDevices ? (sums_[static_cast<std::size_t>(device)].*what).load() : 0;
  }

  static std::size_t level_of(const Allocation& allocation);
  // The regions of its level that it begins and ends in.
  static std::pair<std::uint64_t, std::uint64_t> regions(std::size_t level, const Allocation& allocation);
  Shard& shard(std::size_t level, std::uint64_t region) const;
  bool used(std::size_t level) const { return (*levels_)[level].used.load(std::memory_order_relaxed); }
  // The entry at this address, if it is the one meant.
  template <typename Meant>
  std::optional<Allocation> take(std::size_t level, std::uint64_t address, const Meant& meant);
  // `serial`: only that very entry; 0: whichever is there.
  std::optional<Allocation> take_numbered(std::size_t level, std::uint64_t address, std::uint64_t serial);
  void remove(std::size_t level, std::uint64_t address, std::uint64_t serial);
  void removed(std::size_t level, const Allocation& gone);
  void let_go(const Allocation& gone);
  std::optional<Allocation> find_in(std::size_t level, std::uint64_t address) const;
  template <typename How>
  void change(const Allocation& allocation, const How& how);

  std::unique_ptr<Levels> levels_;
  std::array<Sum, kMaxDevices> sums_;
  std::atomic<std::uint64_t> changes_{1};
};

}  // namespace rota::memory
