// The quick list of stream-ordered memory: blocks that their program has freed and that an allocation of just the same
// size, in the same pool and stream, will probably take again. Such a block counts everywhere as if it were in use, so
// that neither the free nor the allocation changes any table. What that saves is cache misses: a program that works
// between its allocations finds none of rota's tables in the processor's caches, and pays for each line of them.
//
// It holds no block for long: all are freed properly before anything else is asked or done (StreamOrdered::flush).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/memory/heap.h"

namespace rota::memory {

// `Block`: a pointer or an iterator by which the owner knows a block. Not thread-safe.
template <typename Block>
class QuickList {
 public:
  struct Like {
    api::CUmemoryPool pool = nullptr;
    Heap::Stream stream = 0;
    std::uint64_t bytes = 0;
    friend bool operator==(const Like&, const Like&) = default;
  };

  std::size_t size() const { return size_; }
  std::uint64_t bytes() const { return bytes_; }
  void add(const Like& like, Block block) {
    const std::size_t slot = slot_of(like);
    entries_[slot].push_back({like, block});
    slots_ |= std::uint64_t{1} << slot;
    ++size_;
    bytes_ += like.bytes;
  }
  // Takes the latest one like this.
  bool take(const Like& like, Block* block) {
    std::vector<Entry>& same = entries_[slot_of(like)];
    for (std::size_t index = same.size(); index-- > 0;) {
      if (!(same[index].like == like)) continue;
      *block = same[index].block;
      same.erase(same.begin() + static_cast<std::ptrdiff_t>(index));
      --size_;
      bytes_ -= like.bytes;
      return true;
    }
    return false;
  }
  // Whether the list has a block that is of the same size in a heap.
  bool has_as_large(const Like& like) const {
    const std::vector<Entry>& same = entries_[slot_of(like)];
    return std::any_of(same.begin(), same.end(), [&](const Entry& entry) {
      return entry.like.pool == like.pool && entry.like.stream == like.stream &&
             Heap::rounded(entry.like.bytes) == Heap::rounded(like.bytes);
    });
  }
  // Takes all, in no order.
  std::vector<Block> take_all() {
    std::vector<Block> all;
    all.reserve(size_);
    size_ = 0;
    bytes_ = 0;
    for (std::uint64_t slots = std::exchange(slots_, 0); slots != 0; slots &= slots - 1) {
      std::vector<Entry>& same = entries_[static_cast<std::size_t>(std::countr_zero(slots))];
      for (const Entry& entry : same) all.push_back(entry.block);
      same.clear();
    }
    return all;
  }

 private:
  struct Entry {
    Like like;
    Block block;
  };

  static std::size_t slot_of(const Like& like) {
    return (Heap::rounded(like.bytes) / Heap::kGranule + like.stream) * 0x9e3779b97f4a7c15u >> 58;
  }

  std::array<std::vector<Entry>, 64> entries_;  // by a hash, the latest last
  std::uint64_t slots_ = 0;                     // those of them that may have entries, a bit each
  std::size_t size_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace rota::memory
