// Physical memory that the program creates itself (cuMemCreate) and that rota moves. Each allocation is a range of the
// swap backend; this class keeps what the program holds of it: mappings and handles. Handles are rota's own numbers,
// since the driver's change whenever the memory is restored. An allocation lives as long as it has a handle or a
// mapping, and is charged as a whole.
//
// While an allocation is on the GPU, the driver is called with its own handle and the program gets its result. While it
// is evicted, this class does what the driver would do, from its records of reservations and mappings, without waiting;
// a call that the driver would or might refuse waits until the memory is restored, so that the driver decides. The
// driver maps a handle as a whole, and unmaps whole mappings (measured on driver 580.159).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/core/function_ref.h"
#include "runtime/memory/ledger.h"
#include "runtime/memory/swap/swap.h"

namespace rota::memory {

class OwnPhysical {
 public:
  using Handle = PhysicalHandle;
  using RealCall = FunctionRef<api::CUresult()>;
  // cuMemUnmap of a part of the range that the program has named.
  using UnmapPart = FunctionRef<api::CUresult(std::uint64_t address, std::uint64_t bytes)>;

  OwnPhysical(SwapBackend& swap, Ledger& ledger) : swap_(swap), ledger_(ledger) {}

  // How to create memory with these properties so that it can move; nothing: it has to stay on the GPU.
  static std::optional<Making> can_move(const api::CUmemAllocationProp& wanted);
  // The driver's handles are addresses of the host or small numbers.
  static bool is_ours(Handle handle) { return handle >> kBit == 1; }
  // Whether there was ever any. One load.
  bool any() const { return any_.load(std::memory_order_relaxed); }

  // A range of the swap backend now belongs to the program; its bytes are reserved. Returns the program's handle.
  Handle created(std::uint64_t range, std::uint64_t bytes, const api::CUmemAllocationProp& wanted);

  // --- what the program does with such a handle; an error for one that it does not have. None waits for work.

  // `freed`: the GPU whose bytes are freed by it, or kNobody.
  api::CUresult release(Handle handle, int* freed);
  // Nothing: the driver has to be called, with all memory in place.
  std::optional<api::CUresult> map(std::uint64_t address, std::uint64_t bytes, std::uint64_t offset, Handle handle,
                                   unsigned long long flags);
  api::CUresult properties(api::CUmemAllocationProp* into, Handle handle) const;
  // The driver's handle, which stays the same while the memory is held in place; 0: there is none.
  Handle driver_handle(Handle handle) const;
  // The driver's handle, with which others get the memory, which is in place and held there and is pinned from now on;
  // 0: there is none.
  Handle pin(Handle handle, protocol::Pin why);
  // Pins all that is mapped at any of these addresses.
  void pin(std::uint64_t address, std::uint64_t bytes, protocol::Pin why);
  // Whether the program may have a descriptor of it.
  bool exportable(Handle handle) const;

  // --- what it does with addresses

  // Whether any of these addresses belongs to a mapping of such memory.
  bool overlaps(std::uint64_t address, std::uint64_t bytes) const;
  // Numbers that the driver's own would change whenever memory is restored, and the GPU that has the memory.
  struct Found {
    std::uint64_t buffer_id;  // of the mapping
    std::uint64_t block_id;   // of the memory
    int device;
  };
  std::optional<Found> find(std::uint64_t address) const;
  // The range may contain other mappings, too: `call` is the driver's function for the range or for a part of it. If it
  // contains no mapping of such memory, only `call` is called. `freed`: the GPUs whose bytes are freed by it.
  api::CUresult unmap(std::uint64_t address, std::uint64_t bytes, const UnmapPart& call, std::vector<int>* freed);
  // For a range with at least one of these. Nothing: as for map().
  std::optional<api::CUresult> set_access(std::uint64_t address, std::uint64_t bytes,
                                          const api::CUmemAccessDesc* accesses, std::size_t count,
                                          const RealCall& call);
  // Nothing: the driver has to be called.
  std::optional<api::CUresult> access(unsigned long long* flags, const api::CUmemLocation* location,
                                      std::uint64_t address) const;
  // The handle of what is mapped there, which the program now holds once more; nothing: no such memory is.
  std::optional<Handle> retain(std::uint64_t address);

  // --- what the driver has done

  void reserved(std::uint64_t address, std::uint64_t bytes);
  // How many bytes were reserved at this address; 0: none that are known.
  std::uint64_t unreserved(std::uint64_t address);
  // Memory that does not move has been mapped.
  void mapped_otherwise(std::uint64_t address, std::uint64_t bytes);

 private:
  static constexpr unsigned kBit = 62;

  struct OwnMemory {
    std::uint64_t range = 0;
    std::uint64_t bytes = 0;
    std::uint64_t block_id = 0;
    api::CUmemAllocationProp wanted{};
    std::uint64_t handles = 0;
    std::uint64_t mappings = 0;
    int device() const { return wanted.location.id; }
  };
  struct Mapping {
    Handle memory = 0;
    std::uint64_t bytes = 0;
    std::uint64_t buffer_id = 0;
  };
  using Sizes = std::map<std::uint64_t, std::uint64_t>;  // bytes by address

  // All with the lock held.
  const OwnMemory* live(Handle handle) const;
  OwnMemory* live(Handle handle) { return const_cast<OwnMemory*>(std::as_const(*this).live(handle)); }
  std::map<std::uint64_t, Mapping>::const_iterator mapping_at(std::uint64_t address) const;
  bool overlaps_locked(std::uint64_t address, std::uint64_t bytes) const;
  bool would_map(const OwnMemory& memory, std::uint64_t granule, std::uint64_t address, std::uint64_t bytes,
                 std::uint64_t offset, unsigned long long flags) const;
  bool known_by_records(const std::vector<OwnMappings::Mapped>& all, const api::CUmemAccessDesc* accesses,
                        std::size_t count) const;
  // The mappings that any of these addresses belongs to.
  struct Overlap {
    std::vector<OwnMappings::Mapped> all;
    bool whole = true;  // none reaches beyond
    Sizes between;      // what is in none of them
    std::vector<Handle> memories;
  };
  Overlap overlapping(std::uint64_t address, std::uint64_t bytes) const;
  // If it has neither handles nor mappings any more: removes it from the accounting and returns it, to be freed with no
  // lock held.
  std::optional<OwnMemory> drop(Handle number);

  SwapBackend& swap_;
  Ledger& ledger_;
  mutable std::mutex mutex_;  // the fields below; taken before the backend's
  std::map<Handle, OwnMemory> all_;
  std::map<std::uint64_t, Mapping> mappings_;  // by address
  Sizes reservations_;
  Sizes others_;  // mappings of other memory
  std::uint64_t last_ = 0;
  std::uint64_t last_id_ = std::uint64_t{1} << 50;  // beyond the driver's, and those of other memory of rota's
  std::atomic<bool> any_{false};
};

}  // namespace rota::memory
