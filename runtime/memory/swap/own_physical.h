// Physical memory that the program makes itself (cuMemCreate), where it moves: a range of the swap backend's for each
// piece, and in this class what the program has of it: handles, which are numbers of ours, since the driver's change
// whenever a piece comes back, and mappings. A piece lives as long as there is one of either, and is charged as a
// whole.
//
// While a piece lies on the GPU the driver is asked, with its own handle, and its answer is the program's. While it is
// out, what the driver would do is done here, by what is noted of reservations and mappings, and waits for nothing;
// what it would refuse, or might, waits until the piece is back, so that the refusal is the driver's. The driver maps a
// handle as a whole, and unmaps whole mappings (measured on driver 580.159).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/memory/ledger.h"
#include "runtime/memory/swap/swap.h"

namespace rota::memory {

class OwnPhysical {
 public:
  using Handle = PhysicalHandle;
  using RealCall = std::function<api::CUresult()>;
  // cuMemUnmap of a part of what the program has named.
  using UnmapPart = std::function<api::CUresult(std::uint64_t address, std::uint64_t bytes)>;

  OwnPhysical(SwapBackend& swap, Ledger& ledger) : swap_(swap), ledger_(ledger) {}

  // How memory with these properties is to be made so that it can move; nothing: it stays where it is.
  static std::optional<Making> can_move(const api::CUmemAllocationProp& wanted);
  // The driver's handles are addresses of the host or small numbers.
  static bool is_ours(Handle handle) { return handle >> kBit == 1; }
  // Whether there was ever any. One load.
  bool any() const { return any_.load(std::memory_order_relaxed); }

  // A range of the swap backend's is the program's; its bytes are reserved. The program's handle.
  Handle created(std::uint64_t range, std::uint64_t bytes, const api::CUmemAllocationProp& wanted);

  // --- what the program does with such a handle; an error for one that it does not have. None waits for work.

  // `freed`: the GPU whose bytes are free with it, or kNobody.
  api::CUresult release(Handle handle, int* freed);
  // Nothing: the driver has to be asked, with everything in its place.
  std::optional<api::CUresult> map(std::uint64_t address, std::uint64_t bytes, std::uint64_t offset, Handle handle,
                                   unsigned long long flags);
  api::CUresult properties(api::CUmemAllocationProp* into, Handle handle) const;
  // The driver's own, which stays the same while the memory is held in place or pinned; 0: it has none.
  Handle driver_handle(Handle handle);
  // Whether the program may have a descriptor of it.
  bool exportable(Handle handle) const;

  // --- what it does with addresses

  // Whether any of these addresses belongs to a mapping of such memory.
  bool overlaps(std::uint64_t address, std::uint64_t bytes) const;
  // What the driver numbers anew whenever memory comes back.
  struct Found {
    std::uint64_t buffer_id;  // of the mapping
    std::uint64_t block_id;   // of the memory
  };
  std::optional<Found> find(std::uint64_t address) const;
  // Of a range with other mappings than these, too: `call` is the driver's function for it, or for a part of it, and is
  // all where none are these. `freed`: the GPUs that have bytes free with it.
  api::CUresult unmap(std::uint64_t address, std::uint64_t bytes, const UnmapPart& call, std::vector<int>* freed);
  // Of a range with at least one of these. Nothing: as map().
  std::optional<api::CUresult> set_access(std::uint64_t address, std::uint64_t bytes,
                                          const api::CUmemAccessDesc* accesses, std::size_t count,
                                          const RealCall& call);
  // Nothing: it is the driver's to say.
  std::optional<api::CUresult> access(unsigned long long* flags, const api::CUmemLocation* location,
                                      std::uint64_t address) const;
  // The handle of what is mapped there, which the program has once more; nothing: none of these is.
  std::optional<Handle> retain(std::uint64_t address);

  // --- what the driver has done

  void reserved(std::uint64_t address, std::uint64_t bytes);
  // How many bytes were reserved at this address; 0: none that are known.
  std::uint64_t unreserved(std::uint64_t address);
  // Memory that does not move.
  void mapped_otherwise(std::uint64_t address, std::uint64_t bytes);

 private:
  static constexpr unsigned kBit = 62;

  struct Piece {
    std::uint64_t range = 0;
    std::uint64_t bytes = 0;
    std::uint64_t block_id = 0;
    api::CUmemAllocationProp wanted{};
    std::uint64_t handles = 0;
    std::uint64_t mappings = 0;
    int device() const { return wanted.location.id; }
  };
  struct Mapping {
    Handle piece = 0;
    std::uint64_t bytes = 0;
    std::uint64_t buffer_id = 0;
  };
  using Sizes = std::map<std::uint64_t, std::uint64_t>;  // bytes by address

  // All with the lock held.
  Piece* live(Handle handle);
  std::map<std::uint64_t, Mapping>::const_iterator mapping_at(std::uint64_t address) const;
  bool would_map(const Piece& piece, std::uint64_t address, std::uint64_t bytes, std::uint64_t offset,
                 unsigned long long flags) const;
  bool known_by_books(const std::vector<SwapBackend::Mapped>& all, const api::CUmemAccessDesc* accesses,
                      std::size_t count) const;
  // The mappings that any of these addresses belongs to.
  struct Overlap {
    std::vector<SwapBackend::Mapped> all;
    bool whole = true;  // none reaches beyond
    Sizes between;      // what is in none of them
    std::vector<Handle> pieces;
  };
  Overlap overlapping(std::uint64_t address, std::uint64_t bytes) const;
  // If nothing is left of it: its range, which has then left the books; else 0.
  std::uint64_t drop(Handle number);

  SwapBackend& swap_;
  Ledger& ledger_;
  mutable std::mutex mutex_;  // the fields below; taken before the backend's
  std::map<Handle, Piece> pieces_;
  std::map<std::uint64_t, Mapping> mappings_;  // by address
  Sizes reservations_;
  Sizes others_;  // mappings of other memory
  std::uint64_t last_ = 0;
  std::uint64_t last_id_ = std::uint64_t{1} << 50;  // beyond the driver's, and those of other memory of rota's
  std::atomic<bool> any_{false};
};

}  // namespace rota::memory
