// What rota serves instead of one pool of the driver, or as a GPU's small plain memory; and the figures of pools, which
// programs ask for again and again: CuPy asks for two at each allocation, and the driver answers in 80 ns (H100).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "runtime/memory/heap.h"
#include "runtime/memory/ledger.h"

namespace rota::memory {

// A pool's figures in bytes. Written with the lock of StreamOrdered held, read without. A thread that reads a current
// figure and then its high mark finds no lower mark, and no less reserved than used.
struct alignas(64) PoolFigures {
  std::atomic<std::uint64_t> used{0};
  std::atomic<std::uint64_t> used_high{0};
  std::atomic<std::uint64_t> reserved{0};
  std::atomic<std::uint64_t> reserved_high{0};
  // More is reserved than the pool's threshold, as far as that is known, and there are spans without a block in use: a
  // query may give some of them back.
  std::atomic<bool> above_threshold{false};
};

// Finds the figures of a pool without a lock, for as many pools as programs have; those of further ones are found with
// the lock only.
class FiguresOfPools {
 public:
  // Any thread; the pool is not being destroyed meanwhile. Null: it has none here.
  const PoolFigures* find(api::CUmemoryPool pool) const {
    const std::size_t slot = pool != nullptr ? slot_of(pool) : kMost;
    return slot != kMost ? &figures_[slot] : nullptr;
  }
  // These two with the lock held. Null: there are too many pools.
  PoolFigures* add(api::CUmemoryPool pool);
  void remove(api::CUmemoryPool pool);

 private:
  static constexpr std::size_t kMost = 8;

  // kMost: none.
  std::size_t slot_of(api::CUmemoryPool pool) const {
    std::size_t slot = 0;
    while (slot < kMost && pools_[slot].load(std::memory_order_acquire) != pool) ++slot;
    return slot;
  }

  std::array<std::atomic<api::CUmemoryPool>, kMost> pools_{};  // null: the slot is free
  std::array<PoolFigures, kMost> figures_;
};

// Under the lock of StreamOrdered.
struct ServedPool {
  // The kind under which its blocks are in the ledger.
  Kind kind() const { return handle == nullptr ? Kind::kShared : Kind::kServed; }

  api::CUmemoryPool handle = nullptr;
  int device = 0;
  std::uint64_t gpu_bytes = 0;                   // the GPU's size
  std::map<api::CUcontext, Heap> heaps;          // by the context that their spans end with
  std::map<int, api::CUmemAccess_flags> access;  // of other GPUs to its spans
  bool shared = false;                           // there has been access: its spans serve no other pool
  std::uint64_t keep = UINT64_MAX;               // bytes of unused spans to cache; the rest is freed
  // The pool's release threshold, once the driver has been asked; and how often the program may have changed it.
  std::optional<std::uint64_t> threshold;
  std::uint64_t threshold_changes = 0;
  std::uint64_t unpaid = 0;  // bytes of blocks in use that may still be refused, and count for nothing until then
  std::uint64_t grown = 0;   // bytes by which it has grown rather than empty the quick list, and not yet given back
  std::uint64_t quick = 0;   // bytes of blocks in the quick list (quick_list.h), which the heaps say are in use
  PoolFigures own_figures;   // used if FiguresOfPools has no slot
  PoolFigures* figures = &own_figures;

  struct Sums {
    std::uint64_t used = 0;
    std::uint64_t reserved = 0;
    std::uint64_t unused = 0;  // of spans without a block in use
  };
  Sums sums() const;
  // After each change of the heaps or the threshold.
  void publish();
  // This many bytes enter the quick list, or leave it to be in use again.
  void add_quick(std::uint64_t bytes);
  void take_quick(std::uint64_t bytes);
  // The program has destroyed it.
  bool destroyed() const { return handle != nullptr && keep == 0; }
};

}  // namespace rota::memory
