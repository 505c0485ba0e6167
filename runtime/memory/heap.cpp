#include "runtime/memory/heap.h"

#include <algorithm>
#include <iterator>

namespace rota::memory {

void Heap::add(const Span& span) {
  spans_.emplace(span.address, Known{.bytes = span.bytes});
  reserved_ += span.bytes;
  unused_ += span.bytes;
  list(blocks_.emplace(span.address, Block{.bytes = span.bytes}).first);
}

std::vector<Heap::Span> Heap::empty_spans() const {
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
  spans_.erase(known);
}

bool Heap::fills_span(Blocks::const_iterator block) const {
  const auto span = spans_.find(block->first);
  return span != spans_.end() && span->second.bytes == block->second.bytes;
}

// Adds a block that is not in use to the indexes.
void Heap::list(Blocks::iterator block) {
  const auto& [address, what] = *block;
  if (what.state == State::kFree) {
    free_.emplace(what.bytes, address);
    if (fills_span(block)) empty_ += what.bytes;
  } else {
    pending_[what.stream].emplace(what.bytes, address);
    fences_.emplace(what.fence, address);
    charged_ += what.charge;
  }
}

void Heap::unlist(Blocks::iterator block) {
  const auto& [address, what] = *block;
  if (what.state == State::kFree) {
    free_.erase({what.bytes, address});
    if (fills_span(block)) empty_ -= what.bytes;
    return;
  }
  const auto of_stream = pending_.find(what.stream);
  of_stream->second.erase({what.bytes, address});
  // Nearly always the stream soon gives something back again.
  if (of_stream->second.empty() && pending_.size() > kFewStreams) pending_.erase(of_stream);
  const auto [first, last] = fences_.equal_range(what.fence);
  fences_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == block->first; }));
  charged_ -= what.charge;
}

bool Heap::alike(const Block& first, const Block& second) {
  if (first.state != second.state || first.state == State::kUsed) return false;
  return first.state == State::kFree || (first.stream == second.stream && first.stream != 0);
}

// Joins it with its neighbours; the block is not in the indexes before and is afterwards.
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

// Splits off the first `bytes` of a block that is not in use; the rest keeps its state and what is charged beyond
// `bytes`.
Heap::Taken Heap::use(Blocks::iterator block, std::uint64_t bytes) {
  unlist(block);
  const Block was = block->second;
  const Taken taken{.address = block->first,
                    .bytes = bytes,
                    .charge = std::min(was.charge, bytes),
                    .stream = was.stream,
                    .fence = was.fence};
  block->second = Block{.bytes = bytes, .state = State::kUsed};
  used_ += bytes;
  if (Known& span = span_of(taken.address); span.used++ == 0) unused_ -= span.bytes;
  if (was.bytes > bytes) {
    Block rest = was;
    rest.bytes = was.bytes - bytes;
    rest.charge = was.charge - taken.charge;
    list(blocks_.emplace(taken.address + bytes, rest).first);
  }
  return taken;
}

std::optional<Heap::Taken> Heap::take(std::uint64_t bytes, Stream stream) {
  bytes = rounded(bytes);
  const auto fits = [&](const BySize& blocks) { return blocks.lower_bound({bytes, 0}); };
  if (const auto own = stream != 0 ? pending_.find(stream) : pending_.end(); own != pending_.end()) {
    if (const auto found = fits(own->second); found != own->second.end()) {
      return use(blocks_.find(found->second), bytes);
    }
  }
  if (const auto found = fits(free_); found != free_.end()) return use(blocks_.find(found->second), bytes);
  return std::nullopt;
}

std::optional<Heap::Taken> Heap::take_behind(std::uint64_t bytes) {
  bytes = rounded(bytes);
  std::optional<std::pair<std::uint64_t, std::uint64_t>> best;
  for (const auto& [stream, blocks] : pending_) {
    const auto found = blocks.lower_bound({bytes, 0});
    if (found != blocks.end() && (!best || *found < *best)) best = *found;
  }
  if (!best) return std::nullopt;
  return use(blocks_.find(best->second), bytes);
}

void Heap::give(std::uint64_t address, Stream stream, Fence fence, std::uint64_t charge) {
  const auto block = blocks_.find(address);
  if (block == blocks_.end() || block->second.state != State::kUsed) return;
  used_ -= block->second.bytes;
  if (Known& span = span_of(address); --span.used == 0) unused_ += span.bytes;
  block->second.state = fence == 0 ? State::kFree : State::kPending;
  block->second.stream = fence == 0 ? 0 : stream;
  block->second.fence = fence;
  block->second.charge = fence == 0 ? 0 : charge;
  join(block);
}

std::uint64_t Heap::passed(Fence fence) {
  std::uint64_t released = 0;
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
