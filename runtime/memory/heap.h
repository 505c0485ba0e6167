// Cuts blocks out of spans of address space and takes them back, in the order of streams. It works on numbers only,
// calls no driver and reads no clock, so a property test can drive it for a million steps.
//
// A block is given back behind a *fence*: a number for a point in a stream's work, which the caller assigns; the caller
// also says when the stream has passed it. Until then the block is *pending*: its own stream can have it again at once,
// since later work of a stream runs after earlier work; other streams can have it once the fence is passed, or wait for
// the fence.
//
// Sizes and addresses are multiples of kGranule. Neighbouring blocks of a span join when their state is the same: free
// ones, and pending ones of one stream, which then wait for the later fence of the two.
//
// Most programs soon ask for the same size again in the same stream. So a pending block first stays *apart*, as it was
// given back, for an allocation of exactly its size in its stream: that changes no index. It joins its neighbours when
// nothing else of its stream fits, since a stream's own memory comes before what is free for all; when nothing fits at
// all; when many blocks are apart; and before empty spans are listed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/memory/round_up.h"

namespace rota::memory {

// Not thread-safe.
class Heap {
 public:
  static constexpr std::uint64_t kGranule = 512;

  using Stream = std::uint64_t;  // 0: cannot be identified, so nothing is ever pending for it
  using Fence = std::uint64_t;   // of one stream in rising order; 0: nothing to wait for

  struct Span {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
  };
  // A block that is in use from now on, with what was still charged for its bytes while they were pending.
  struct Taken {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // rounded up to kGranule
    std::uint64_t charge = 0;
    // What it was until now, for put_back().
    Stream stream = 0;
    Fence fence = 0;
  };

  static std::uint64_t rounded(std::uint64_t bytes) { return round_up(bytes, kGranule); }

  void add(const Span& span);
  // The spans with no block in use and nothing pending, in order of address.
  std::vector<Span> empty_spans();
  // `span`: the address of an empty span.
  void remove(std::uint64_t span);
  // From now on no block is taken from the span at this address.
  void close(std::uint64_t span);

  // Takes a block of at least `bytes` (not 0): one of just that size that this stream has given back, otherwise the
  // smallest that it has given back, otherwise the smallest that is free. Nothing if there is no such block.
  std::optional<Taken> take(std::uint64_t bytes, Stream stream);
  // The same, but only a block that this stream has given back, and only if nothing has to be joined for it.
  std::optional<Taken> take_own(std::uint64_t bytes, Stream stream);
  // The same for blocks that are pending in any stream: the caller makes its stream wait for `fence` before the block
  // is used.
  std::optional<Taken> take_behind(std::uint64_t bytes);
  // Gives a taken block back; `charge` bytes of it stay charged until the fence is passed (0 if there is none).
  void give(std::uint64_t address, Stream stream, Fence fence, std::uint64_t charge);
  // The same behind a fence that belongs to this block alone: passed() is called with the two. So the block may stay
  // apart.
  void give_behind_its_own(std::uint64_t address, Stream stream, Fence fence, std::uint64_t charge);
  // The block was not used after all.
  void put_back(const Taken& taken) { give(taken.address, taken.stream, taken.fence, taken.charge); }
  // The stream has passed this fence, whose own block was given back at `address`. Returns the bytes that are no longer
  // charged.
  std::uint64_t passed(Fence fence, std::uint64_t address);
  // Joins blocks that are apart with their neighbours.
  void join_apart() { join_apart(std::nullopt); }

  std::uint64_t used_bytes() const { return used_; }
  std::uint64_t reserved_bytes() const { return reserved_; }  // of all spans
  std::uint64_t closed_bytes() const;                         // of those that are closed
  std::uint64_t pending_charge() const { return charged_; }
  std::uint64_t empty_bytes() const { return empty_; }  // of empty_spans(), once join_apart() has joined neighbours
  // Of all spans without a block in use: empty ones, and those that only wait for fences.
  std::uint64_t unused_bytes() const { return unused_; }
  // The streams that have something pending, and a few that had.
  std::size_t streams() const { return pending_.size(); }

 private:
  enum class State : std::uint8_t { kUsed, kFree, kPending };
  struct Block {
    std::uint64_t bytes = 0;
    State state = State::kFree;
    Stream stream = 0;
    Fence fence = 0;  // 0 while it is apart: passed since
    std::uint64_t charge = 0;
    bool apart = false;  // pending, and in no index
  };
  struct Known {
    std::uint64_t bytes = 0;
    std::size_t used = 0;  // blocks in use
    bool closed = false;
  };
  using Blocks = std::map<std::uint64_t, Block>;  // by address; those of a span follow each other without gaps
  using BySize = std::map<std::pair<std::uint64_t, std::uint64_t>, Blocks::iterator>;  // by bytes, address
  static constexpr std::size_t kFewStreams = 16;   // that may be listed with nothing pending
  static constexpr std::size_t kMostApart = 1024;  // then all of them join
  // What a stream has given back.
  struct Pending {
    BySize blocks;
    std::size_t apart = 0;  // how many more are apart
  };
  struct Apart {
    Stream stream = 0;
    std::uint64_t bytes = 0;
    Blocks::iterator block;
  };
  using Streams = std::map<Stream, Pending>;
  using Fences = std::multimap<Fence, std::uint64_t>;  // address of the pending block

  Known& span_of(std::uint64_t address) { return std::prev(spans_.upper_bound(address))->second; }
  bool fills_span(Blocks::const_iterator block) const;
  bool is_closed(std::uint64_t address) const;
  void list(Blocks::iterator block);
  void unlist(Blocks::iterator block);
  Fences::iterator fence_of(Blocks::const_iterator block);
  void join(Blocks::iterator block);
  void set_used(Blocks::iterator block, std::uint64_t bytes);
  Blocks::iterator unuse(std::uint64_t address, Stream stream, Fence fence, std::uint64_t charge);
  static bool alike(const Block& first, const Block& second);
  Taken use(BySize& blocks, BySize::iterator listed, std::uint64_t bytes);
  std::optional<Taken> take_apart(Streams::iterator own, std::uint64_t bytes);
  std::optional<Taken> take_fitting(BySize& blocks, std::uint64_t bytes);
  void join_apart(std::optional<Stream> stream);
  void forget_if_idle(Streams::iterator stream);
  static std::size_t slot_of(Stream stream, std::uint64_t bytes) {
    return (bytes / kGranule + stream) * 0x9e3779b97f4a7c15u >> 58;
  }

  std::map<std::uint64_t, Known> spans_;  // by address
  std::size_t closed_ = 0;                // how many of them are closed
  Blocks blocks_;
  BySize free_;
  Streams pending_;
  std::array<std::vector<Apart>, 64> apart_;  // by a hash of stream and size, the latest last
  std::uint64_t slots_ = 0;                   // those of them with blocks, a bit each
  std::size_t all_apart_ = 0;
  Fences fences_;
  std::uint64_t used_ = 0;
  std::uint64_t reserved_ = 0;
  std::uint64_t charged_ = 0;
  std::uint64_t empty_ = 0;
  std::uint64_t unused_ = 0;
};

}  // namespace rota::memory
