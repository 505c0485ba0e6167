#include "runtime/memory/heap.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace rota::memory {

void Heap::add(const Span& span) {
  spans_.emplace(span.address, Known{.bytes = span.bytes});
  reserved_ += span.bytes;
  unused_ += span.bytes;
  list(blocks_.emplace(span.address, Block{.bytes = span.bytes}).first);
}

std::vector<Heap::Span> Heap::empty_spans() {
  join_apart();
  std::vector<Span> empty;
  for (const auto& [address, span] : spans_) {
    if (span.used != 0) continue;
    const Block& first = blocks_.at(address);
    if (first.state == State::kFree && first.bytes == span.bytes) empty.push_back({address, span.bytes});
  }
  return empty;
}

void Heap::remove(std::uint64_t span) {
  const auto known = spans_.find(span);
  const auto block = blocks_.find(span);
  if (known == spans_.end() || block->second.state != State::kFree || block->second.bytes != known->second.bytes)
    return;
  unlist(block);
  blocks_.erase(block);
  reserved_ -= known->second.bytes;
  unused_ -= known->second.bytes;
  if (known->second.closed) --closed_;
  spans_.erase(known);
}

// The blocks of a closed span are in no index by size, from which blocks are taken.
void Heap::close(std::uint64_t span) {
  const auto known = spans_.find(span);
  if (known == spans_.end() || known->second.closed) return;
  join_apart();
  const auto end = blocks_.lower_bound(span + known->second.bytes);
  const auto each_unused = [&](auto what) {
    for (auto block = blocks_.find(span); block != end; ++block) {
      if (block->second.state != State::kUsed) (this->*what)(block);
    }
  };
  each_unused(&Heap::unlist);
  known->second.closed = true;
  ++closed_;
  each_unused(&Heap::list);
}

std::uint64_t Heap::closed_bytes() const {
  std::uint64_t bytes = 0;
  if (closed_ == 0) return bytes;
  for (const auto& [address, span] : spans_) bytes += span.closed ? span.bytes : 0;
  return bytes;
}

bool Heap::is_closed(std::uint64_t address) const {
  return closed_ != 0 && std::prev(spans_.upper_bound(address))->second.closed;
}

bool Heap::fills_span(Blocks::const_iterator block) const {
  const auto span = spans_.find(block->first);
  return span != spans_.end() && span->second.bytes == block->second.bytes;
}

// Adds a block that is not in use to the indexes.
void Heap::list(Blocks::iterator block) {
  const auto& [address, what] = *block;
  const bool serves = !is_closed(address);
  if (what.state == State::kFree) {
    if (serves) free_.emplace(std::pair(what.bytes, address), block);
    if (fills_span(block)) empty_ += what.bytes;
  } else {
    if (serves) pending_[what.stream].blocks.emplace(std::pair(what.bytes, address), block);
    fences_.emplace(what.fence, address);
    charged_ += what.charge;
  }
}

// Of a pending block that is listed.
Heap::Fences::iterator Heap::fence_of(Blocks::const_iterator block) {
  const auto [first, last] = fences_.equal_range(block->second.fence);
  return std::find_if(first, last, [&](const auto& entry) { return entry.second == block->first; });
}

void Heap::unlist(Blocks::iterator block) {
  const auto& [address, what] = *block;
  if (what.state == State::kFree) {
    free_.erase({what.bytes, address});
    if (fills_span(block)) empty_ -= what.bytes;
    return;
  }
  if (const auto of_stream = pending_.find(what.stream); of_stream != pending_.end()) {
    of_stream->second.blocks.erase({what.bytes, address});
    forget_if_idle(of_stream);
  }
  fences_.erase(fence_of(block));
  charged_ -= what.charge;
}

// Keeps a few idle streams listed: nearly always a stream soon gives something back again.
void Heap::forget_if_idle(Streams::iterator stream) {
  if (stream->second.blocks.empty() && stream->second.apart == 0 && pending_.size() > kFewStreams) {
    pending_.erase(stream);
  }
}

bool Heap::alike(const Block& first, const Block& second) {
  if (first.state != second.state || first.state == State::kUsed || first.apart || second.apart) return false;
  return first.state == State::kFree || (first.stream == second.stream && first.stream != 0);
}

// Joins a block with its neighbours and adds it to the indexes, in which it was not.
void Heap::join(Blocks::iterator block) {
  const auto absorb = [this](Blocks::iterator into, Blocks::iterator next) {
    into->second.bytes += next->second.bytes;
    into->second.charge += next->second.charge;
    into->second.fence = std::max(into->second.fence, next->second.fence);
    blocks_.erase(next);
  };
  const auto next = std::next(block);
  if (next != blocks_.end() && !spans_.contains(next->first) && alike(block->second, next->second)) {
    unlist(next);
    absorb(block, next);
  }
  if (block != blocks_.begin() && !spans_.contains(block->first)) {
    const auto before = std::prev(block);
    if (alike(before->second, block->second)) {
      unlist(before);
      absorb(before, block);
      block = before;
    }
  }
  list(block);
}

// The first `bytes` of a block that is in no index.
void Heap::set_used(Blocks::iterator block, std::uint64_t bytes) {
  block->second = {.bytes = bytes, .state = State::kUsed};
  used_ += bytes;
  if (Known& span = span_of(block->first); span.used++ == 0) unused_ -= span.bytes;
}

// Splits off the first `bytes` of a listed block; the rest keeps its state, what is charged beyond `bytes`, and its
// places in the indexes.
Heap::Taken Heap::use(BySize& blocks, BySize::iterator listed, std::uint64_t bytes) {
  const Blocks::iterator block = listed->second;
  const Block was = block->second;
  const Taken taken{.address = block->first,
                    .bytes = bytes,
                    .charge = std::min(was.charge, bytes),
                    .stream = was.stream,
                    .fence = was.fence};
  if (was.bytes == bytes) {
    unlist(block);
  } else {
    Block rest = was;
    rest.bytes = was.bytes - bytes;
    rest.charge = was.charge - taken.charge;
    const std::uint64_t left = taken.address + bytes;
    if (was.state == State::kPending) {
      fence_of(block)->second = left;
      charged_ -= taken.charge;
    } else if (fills_span(block)) {
      empty_ -= was.bytes;
    }
    BySize::node_type entry = blocks.extract(listed);
    entry.key() = {rest.bytes, left};
    entry.mapped() = blocks_.emplace_hint(std::next(block), left, rest);
    blocks.insert(std::move(entry));
  }
  set_used(block, bytes);
  return taken;
}

// A block that is apart and has exactly this size.
std::optional<Heap::Taken> Heap::take_apart(Streams::iterator own, std::uint64_t bytes) {
  const Stream stream = own->first;
  std::vector<Apart>& alike = apart_[slot_of(stream, bytes)];
  const auto found = std::find_if(alike.rbegin(), alike.rend(),
                                  [&](const Apart& each) { return each.stream == stream && each.bytes == bytes; });
  if (found == alike.rend()) return std::nullopt;
  const Blocks::iterator block = found->block;
  alike.erase(std::prev(found.base()));
  if (alike.empty()) slots_ &= ~(std::uint64_t{1} << slot_of(stream, bytes));
  --own->second.apart;
  --all_apart_;
  const Block was = block->second;
  charged_ -= was.charge;
  set_used(block, bytes);
  return Taken{.address = block->first, .bytes = bytes, .charge = was.charge, .stream = was.stream, .fence = was.fence};
}

// The smallest that is large enough.
std::optional<Heap::Taken> Heap::take_fitting(BySize& blocks, std::uint64_t bytes) {
  const auto found = blocks.lower_bound({bytes, 0});
  return found != blocks.end() ? std::optional(use(blocks, found, bytes)) : std::nullopt;
}

std::optional<Heap::Taken> Heap::take_own(std::uint64_t bytes, Stream stream) {
  bytes = rounded(bytes);
  const auto own = stream != 0 ? pending_.find(stream) : pending_.end();
  if (own == pending_.end()) return std::nullopt;
  const auto taken = own->second.apart != 0 ? take_apart(own, bytes) : std::nullopt;
  return taken ? taken : take_fitting(own->second.blocks, bytes);
}

std::optional<Heap::Taken> Heap::take(std::uint64_t bytes, Stream stream) {
  bytes = rounded(bytes);
  if (const auto taken = take_own(bytes, stream)) return taken;
  if (const auto own = stream != 0 ? pending_.find(stream) : pending_.end();
      own != pending_.end() && own->second.apart != 0) {
    join_apart(stream);
    // The stream may have been forgotten, if it had passed all its fences.
    const auto still = pending_.find(stream);
    const auto taken = still != pending_.end() ? take_fitting(still->second.blocks, bytes) : std::nullopt;
    if (taken) return taken;
  }
  if (const auto taken = take_fitting(free_, bytes)) return taken;
  if (all_apart_ == 0) return std::nullopt;
  join_apart();
  return take_fitting(free_, bytes);
}

std::optional<Heap::Taken> Heap::take_behind(std::uint64_t bytes) {
  join_apart();
  bytes = rounded(bytes);
  BySize* in = nullptr;
  BySize::iterator best;
  for (auto& [stream, pending] : pending_) {
    const auto found = pending.blocks.lower_bound({bytes, 0});
    if (found == pending.blocks.end() || (in != nullptr && best->first < found->first)) continue;
    in = &pending.blocks;
    best = found;
  }
  if (in == nullptr) return std::nullopt;
  return use(*in, best, bytes);
}

// A block that is no longer in use, in no index yet; blocks_.end(): it was not in use.
Heap::Blocks::iterator Heap::unuse(std::uint64_t address, Stream stream, Fence fence, std::uint64_t charge) {
  const auto block = blocks_.find(address);
  if (block == blocks_.end() || block->second.state != State::kUsed) return blocks_.end();
  const std::uint64_t bytes = block->second.bytes;
  used_ -= bytes;
  if (Known& span = span_of(address); --span.used == 0) unused_ += span.bytes;
  block->second =
      fence == 0 ? Block{.bytes = bytes}
                 : Block{.bytes = bytes, .state = State::kPending, .stream = stream, .fence = fence, .charge = charge};
  return block;
}

void Heap::give(std::uint64_t address, Stream stream, Fence fence, std::uint64_t charge) {
  if (const auto block = unuse(address, stream, fence, charge); block != blocks_.end()) join(block);
}

void Heap::give_behind_its_own(std::uint64_t address, Stream stream, Fence fence, std::uint64_t charge) {
  if (stream == 0 || is_closed(address)) return give(address, stream, fence, charge);
  if (all_apart_ == kMostApart) join_apart();
  const auto block = unuse(address, stream, fence, charge);
  if (block == blocks_.end()) return;
  const std::uint64_t bytes = block->second.bytes;
  block->second.apart = true;
  apart_[slot_of(stream, bytes)].push_back({.stream = stream, .bytes = bytes, .block = block});
  slots_ |= std::uint64_t{1} << slot_of(stream, bytes);
  charged_ += charge;
  ++pending_[stream].apart;
  ++all_apart_;
}

// Of one stream, or of all.
void Heap::join_apart(std::optional<Stream> stream) {
  if (all_apart_ == 0) return;
  std::vector<Apart> joined;
  for (std::uint64_t slots = slots_; slots != 0; slots &= slots - 1) {
    const int slot = std::countr_zero(slots);
    std::vector<Apart>& alike = apart_[static_cast<std::size_t>(slot)];
    const auto other = [&](const Apart& each) { return each.stream != *stream; };
    const auto first = stream ? std::stable_partition(alike.begin(), alike.end(), other) : alike.begin();
    joined.insert(joined.end(), first, alike.end());
    alike.erase(first, alike.end());
    if (alike.empty()) slots_ &= ~(std::uint64_t{1} << slot);
  }
  all_apart_ -= joined.size();
  for (const Apart& each : joined) {
    Block& what = each.block->second;
    charged_ -= what.charge;
    if (what.fence == 0) what = {.bytes = what.bytes};
    what.apart = false;
    join(each.block);
    const auto of_stream = pending_.find(each.stream);
    --of_stream->second.apart;
    forget_if_idle(of_stream);
  }
}

std::uint64_t Heap::passed(Fence fence, std::uint64_t address) {
  std::uint64_t released = 0;
  if (const auto block = blocks_.find(address);
      block != blocks_.end() && block->second.apart && block->second.fence == fence) {
    block->second.fence = 0;
    released = std::exchange(block->second.charge, 0);
    charged_ -= released;
  }
  for (auto found = fences_.find(fence); found != fences_.end(); found = fences_.find(fence)) {
    const auto block = blocks_.find(found->second);
    released += block->second.charge;
    unlist(block);
    block->second = Block{.bytes = block->second.bytes};
    join(block);
  }
  return released;
}

}  // namespace rota::memory
