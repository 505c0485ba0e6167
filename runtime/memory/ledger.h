// The ledger: every live allocation of this process, and how many bytes each GPU carries for it. The one source for the
// limit, for cuMemGetInfo and for every free, since memory taken by one route may be given back by another.
//
// Bytes are reserved before the driver is asked and released after it has taken the memory back, in one atomic word per
// GPU: a limit cannot be passed by two threads at once, and no thread's sum is lost (nvshare's sixth defect).
// Entries lie in shards chosen by address, each an ordered map behind its own lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "generated/driver_types.h"

namespace rota::memory {

// CUDA device ordinals beyond this are accounted to none; no machine has more GPUs in one process.
inline constexpr int kMaxDevices = 64;

enum class Kind : std::uint8_t {
  kPlain,      // cuMemAlloc or cuMemAllocPitch, left as it was
  kConverted,  // the same, served as managed memory
  kManaged,    // the program's own cuMemAllocManaged
  kAsync,      // stream-ordered, from a pool
  kArray,      // a CUarray or CUmipmappedArray; the address is its handle with kHandleBit
  kPhysical,   // cuMemCreate's, which has a table of its own (physical.h)
};

// Whether there can be no more of it than the GPU has, or would have without rota.
constexpr bool bound_to_gpu(Kind kind) {
  return kind != Kind::kManaged;
}

// Whether Unified Memory can move it off the GPU while others run.
constexpr bool movable(Kind kind) {
  return kind == Kind::kConverted || kind == Kind::kManaged;
}

// Arrays have handles that are host addresses. They are kept beyond every address, so that none can lie "inside" one.
inline constexpr std::uint64_t kHandleBit = std::uint64_t{1} << 63;

struct Allocation {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  api::CUcontext context = nullptr;
  int device = 0;
  Kind kind = Kind::kPlain;
};

class Ledger {
 public:
  Ledger();

  // The most that may be reserved on a GPU. Set before memory is taken there; a lower limit than what is live refuses
  // whatever comes next and takes nothing away.
  void set_limit(int device, std::uint64_t bytes);
  std::uint64_t limit(int device) const;
  // The most of it that may be memory which without rota would have to lie on the GPU: all kinds but kManaged, of which
  // the driver gives more than the GPU has.
  void set_capacity(int device, std::uint64_t bytes);
  std::uint64_t capacity(int device) const;

  // Takes room for an allocation that is about to be made; false, and nothing taken, if it does not fit.
  [[nodiscard]] bool reserve(int device, std::uint64_t bytes, Kind kind);
  void release(int device, std::uint64_t bytes, Kind kind);
  // Reserved bytes, which is what is live plus what is being asked for right now.
  std::uint64_t live_bytes(int device) const;
  // The part of them that cannot leave the GPU.
  std::uint64_t fixed_bytes(int device) const;

  // Enters an allocation whose bytes are reserved.
  void add(const Allocation& allocation);
  // Removes the entry that begins at `address`; its bytes stay reserved until release(), because the driver still has
  // to be asked. If the driver refuses, add() it again. Exactly one of several threads gets an entry.
  std::optional<Allocation> take(std::uint64_t address);
  // The entry that holds `address`, also in its middle.
  std::optional<Allocation> find(std::uint64_t address) const;
  // A context is gone and its memory with it: removes and releases its entries. How many there were.
  std::size_t drop_context(api::CUcontext context);
  // Copies of the entries of one kind on one GPU, in order of address.
  std::vector<Allocation> list(int device, Kind kind) const;
  std::size_t entries() const;

  // In the child of a fork: the parent's memory is not ours.
  void after_fork_in_child();

 private:
  static constexpr std::size_t kShards = 64;
  struct alignas(64) Shard {
    mutable std::mutex mutex;
    std::map<std::uint64_t, Allocation> entries;  // by first address
  };
  struct alignas(64) Sum {
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> movable{0};
    std::atomic<std::uint64_t> bound{0};  // what counts against the capacity
    std::atomic<std::uint64_t> limit{UINT64_MAX};
    std::atomic<std::uint64_t> capacity{UINT64_MAX};
  };
  using Shards = std::array<Shard, kShards>;

  Shard& shard(std::uint64_t address) const;

  std::unique_ptr<Shards> shards_;
  std::array<Sum, kMaxDevices> sums_;
};

}  // namespace rota::memory
