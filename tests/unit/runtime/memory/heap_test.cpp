// Blocks carved out of spans, in the order of streams.
#include "runtime/memory/heap.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <vector>

#ifndef HEAP_SEEDS
#define HEAP_SEEDS 4
#endif

using rota::memory::Heap;

namespace {

constexpr std::uint64_t kBase = 0x100000;
constexpr std::uint64_t kSpan = 64 * Heap::kGranule;

Heap with_span() {
  Heap heap;
  heap.add({kBase, kSpan});
  return heap;
}

}  // namespace

TEST_CASE("a heap's blocks are multiples of its granule and adjacent") {
  Heap heap = with_span();
  const auto first = heap.take(1, 0);
  const auto second = heap.take(Heap::kGranule + 1, 0);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->address == kBase);
  CHECK(second->address == kBase + Heap::kGranule);
  CHECK(second->bytes == 2 * Heap::kGranule);
  CHECK(heap.used_bytes() == 3 * Heap::kGranule);
  CHECK(heap.reserved_bytes() == kSpan);
}

TEST_CASE("a stream has what it gave back again at once, and others when the fence is passed") {
  Heap heap = with_span();
  const auto all = heap.take(kSpan, 0);
  REQUIRE(all);
  heap.give(all->address, 7, 1, kSpan);
  CHECK_FALSE(heap.take(kSpan, 8));
  CHECK_FALSE(heap.take(kSpan, 0));
  const auto again = heap.take(kSpan, 7);
  REQUIRE(again);
  CHECK(again->address == all->address);
  CHECK(again->charge == kSpan);
  heap.give(again->address, 7, 2, kSpan);
  CHECK(heap.passed(1, all->address) == 0);  // of the use before
  CHECK_FALSE(heap.take(kSpan, 8));
  CHECK(heap.passed(2, all->address) == kSpan);
  CHECK(heap.take(kSpan, 8));
}

TEST_CASE("if memory is short a block is taken behind the fence of another stream, and what is left stays pending") {
  Heap heap = with_span();
  const auto all = heap.take(kSpan, 0);
  heap.give(all->address, 7, 5, kSpan);
  const auto part = heap.take_behind(kSpan / 2);
  REQUIRE(part);
  CHECK(part->fence == 5);
  CHECK(part->charge == kSpan / 2);
  CHECK(heap.pending_charge() == kSpan / 2);
  CHECK_FALSE(heap.take(kSpan / 2, 8));
  CHECK(heap.passed(5, all->address) == kSpan / 2);
  CHECK(heap.take(kSpan / 2, 8));
}

TEST_CASE("a block that could not be used goes back as it was") {
  Heap heap = with_span();
  const auto all = heap.take(kSpan, 0);
  heap.give(all->address, 7, 5, 100);
  const auto taken = heap.take(Heap::kGranule, 7);
  REQUIRE(taken);
  heap.put_back(*taken);
  CHECK(heap.pending_charge() == 100);
  CHECK(heap.passed(5, all->address) == 100);
  CHECK(heap.empty_spans().size() == 1);
}

TEST_CASE("pending neighbours of one stream join and wait for the later fence") {
  Heap heap = with_span();
  const auto first = heap.take(kSpan / 2, 0);
  const auto second = heap.take(kSpan / 2, 0);
  const bool apart = GENERATE(false, true);  // at first
  const auto give = apart ? &Heap::give_behind_its_own : &Heap::give;
  (heap.*give)(first->address, 7, 1, 10);
  (heap.*give)(second->address, 7, 2, 20);
  const auto both = heap.take(kSpan, 7);
  REQUIRE(both);
  CHECK(both->fence == 2);
  CHECK(both->charge == 30);
  heap.put_back(*both);
  CHECK(heap.passed(1, first->address) == 0);
  CHECK_FALSE(heap.take(Heap::kGranule, 8));
  CHECK(heap.passed(2, second->address) == 30);
  CHECK(heap.take(kSpan, 8));
}

TEST_CASE("blocks that cannot be told to be of one stream do not join while they are pending") {
  Heap heap = with_span();
  const auto first = heap.take(kSpan / 2, 0);
  const auto second = heap.take(kSpan / 2, 0);
  heap.give(first->address, 0, 1, 0);
  heap.give(second->address, 0, 2, 0);
  CHECK_FALSE(heap.take(Heap::kGranule, 0));
  heap.passed(1, first->address);
  CHECK(heap.take(kSpan / 2, 0));
}

TEST_CASE("an allocation of just the size that its stream gave back gets that block, and leaves larger ones whole") {
  Heap heap = with_span();
  const auto small = heap.take(Heap::kGranule, 7);
  const auto large = heap.take(2 * Heap::kGranule, 7);
  heap.give_behind_its_own(small->address, 7, 1, 100);
  heap.give_behind_its_own(large->address, 7, 2, 200);
  const auto again = heap.take(2 * Heap::kGranule, 7);
  REQUIRE(again);
  CHECK(again->address == large->address);
  CHECK(again->charge == 200);
  CHECK(heap.pending_charge() == 100);
  CHECK(heap.take(Heap::kGranule, 7)->address == small->address);
}

TEST_CASE("a stream's own memory, which is charged already, comes before what is free for all") {
  Heap heap = with_span();
  const auto first = heap.take(Heap::kGranule, 7);
  const auto second = heap.take(Heap::kGranule, 7);
  heap.give_behind_its_own(first->address, 7, 1, 10);
  heap.give_behind_its_own(second->address, 7, 2, 20);
  const auto both = heap.take(2 * Heap::kGranule, 7);
  REQUIRE(both);
  CHECK(both->address == first->address);
  CHECK(both->charge == 30);
}

TEST_CASE("streams that come and go leave nothing behind") {
  Heap heap = with_span();
  for (Heap::Stream stream = 1; stream <= 1000; ++stream) {
    const auto block = heap.take(Heap::kGranule, stream);
    REQUIRE(block);
    heap.give_behind_its_own(block->address, stream, stream, 1);
    heap.passed(stream, block->address);
    if (stream % 10 == 0) heap.join_apart();
  }
  CHECK(heap.streams() < 30);
}

TEST_CASE("blocks that stand apart join once nothing else fits, and those that the stream has passed are anybody's") {
  Heap heap = with_span();
  const auto first = heap.take(kSpan / 4, 7);
  const auto second = heap.take(kSpan / 4, 7);
  const auto rest = heap.take(kSpan / 2, 7);
  REQUIRE(rest);
  heap.give_behind_its_own(first->address, 7, 1, 10);
  heap.give_behind_its_own(second->address, 7, 2, 20);
  CHECK(heap.passed(1, first->address) == 10);
  CHECK_FALSE(heap.take(kSpan / 2, 8));
  CHECK(heap.passed(2, second->address) == 20);
  CHECK(heap.pending_charge() == 0);
  const auto both = heap.take(kSpan / 2, 8);
  REQUIRE(both);
  CHECK(both->address == first->address);
  CHECK(both->charge == 0);
}

TEST_CASE("of more blocks than may stand apart none is lost") {
  constexpr std::uint64_t kBlocks = 5000;
  Heap heap;
  heap.add({kBase, kBlocks * Heap::kGranule});
  std::vector<std::uint64_t> all;
  for (std::uint64_t number = 0; number < kBlocks; ++number) all.push_back(heap.take(Heap::kGranule, 7)->address);
  CHECK_FALSE(heap.take(Heap::kGranule, 7));
  Heap::Fence fence = 0;
  for (const std::uint64_t address : all) heap.give_behind_its_own(address, 7, ++fence, Heap::kGranule);
  CHECK(heap.pending_charge() == kBlocks * Heap::kGranule);
  const auto whole = heap.take(kBlocks * Heap::kGranule, 7);
  REQUIRE(whole);
  CHECK(whole->charge == kBlocks * Heap::kGranule);
  CHECK(whole->fence == fence);
}

TEST_CASE("only a span without blocks, used or pending, is empty and can be removed") {
  Heap heap = with_span();
  heap.add({kBase + kSpan, kSpan});  // directly after it: blocks never reach across the boundary
  const auto block = heap.take(Heap::kGranule, 0);
  REQUIRE(heap.empty_spans().size() == 1);
  CHECK(heap.empty_spans()[0].address == kBase + kSpan);
  CHECK_FALSE(heap.take(2 * kSpan, 0));
  heap.remove(kBase);  // in use
  CHECK(heap.reserved_bytes() == 2 * kSpan);
  heap.give(block->address, 7, 1, 0);
  CHECK(heap.empty_spans().size() == 1);
  heap.passed(1, block->address);
  CHECK(heap.empty_spans().size() == 2);
  heap.remove(kBase);
  CHECK(heap.reserved_bytes() == kSpan);
  CHECK_FALSE(heap.take(kSpan + 1, 0));
}

TEST_CASE(
    "of a span that is closed nothing is taken, and it is empty once everything in it was given back and passed") {
  Heap heap = with_span();
  const auto used = heap.take(kSpan / 4, 0);
  const auto pending = heap.take(kSpan / 4, 0);
  const auto apart = heap.take(kSpan / 4, 0);
  heap.give(pending->address, 7, 1, 10);
  heap.give_behind_its_own(apart->address, 7, 2, 20);
  heap.close(kBase);
  heap.close(kBase);
  CHECK(heap.closed_bytes() == kSpan);
  for (const Heap::Stream stream : {0, 7, 8}) CHECK_FALSE(heap.take(Heap::kGranule, stream));
  CHECK_FALSE(heap.take_behind(Heap::kGranule));
  CHECK(heap.pending_charge() == 30);
  heap.add({2 * kBase, kSpan});
  const auto other = heap.take(kSpan, 7);
  REQUIRE(other);
  CHECK(other->address == 2 * kBase);
  heap.give_behind_its_own(used->address, 7, 3, 40);
  CHECK_FALSE(heap.take(kSpan / 4, 7));
  CHECK(heap.passed(1, pending->address) + heap.passed(2, apart->address) + heap.passed(3, used->address) == 70);
  CHECK(heap.pending_charge() == 0);
  CHECK_FALSE(heap.take(Heap::kGranule, 7));
  CHECK(heap.empty_bytes() == kSpan);
  REQUIRE(heap.empty_spans().size() == 1);
  heap.remove(kBase);
  CHECK(heap.closed_bytes() == 0);
  CHECK(heap.reserved_bytes() == kSpan);
  heap.add({kBase, kSpan});
  CHECK(heap.take(kSpan, 7));
}

// Against a model that knows who has each granule: nobody, a block, or a stream behind a fence.
TEST_CASE("no granule is ever two blocks', or another stream's before its fence, and every byte comes back") {
  const int seed = GENERATE(range(1, HEAP_SEEDS + 1));
  std::mt19937 random(static_cast<unsigned>(seed));
  INFO("seed " << seed);
  struct Granule {
    std::uint64_t block = 0;  // 0: none
    Heap::Stream stream = 0;
    Heap::Fence fence = 0;  // 0: nobody waits
  };
  struct Live {
    std::uint64_t bytes;
    std::uint64_t charge;
  };
  Heap heap;
  std::map<std::uint64_t, Granule> granules;
  std::map<std::uint64_t, Live> live;
  std::map<std::uint64_t, std::uint64_t> spans;  // address -> bytes
  std::map<std::uint64_t, std::uint64_t> closed;
  struct Outstanding {
    Heap::Fence fence;
    std::uint64_t address;
  };
  std::vector<Outstanding> outstanding;
  Heap::Fence last_fence = 0;
  std::uint64_t charged = 0;  // the charge of pending blocks that has not been returned
  std::uint64_t next_span = kBase;
  const auto pick = [&](std::uint64_t below) { return random() % below; };
  bool sound = true;
  const auto enter = [&](const Heap::Taken& taken, Heap::Stream stream, bool behind) {
    for (std::uint64_t at = taken.address; at < taken.address + taken.bytes; at += Heap::kGranule) {
      Granule& granule = granules.at(at);
      const bool free = granule.block == 0 && granule.fence == 0;
      const bool own = granule.block == 0 && granule.fence != 0 && stream != 0 && granule.stream == stream;
      const bool awaited = granule.block == 0 && behind && granule.fence <= taken.fence && granule.fence != 0;
      sound = sound && (free || own || awaited);
      const auto beyond = closed.upper_bound(at);
      sound = sound && (beyond == closed.begin() || at - std::prev(beyond)->first >= std::prev(beyond)->second);
      granule = {.block = taken.address};
    }
    charged -= taken.charge;
    live[taken.address] = {taken.bytes, taken.bytes};
  };
  // It was not used after all, or its use ends before the fence in front of it is passed.
  const auto back = [&](const Heap::Taken& taken) {
    for (std::uint64_t at = taken.address; at < taken.address + taken.bytes; at += Heap::kGranule) {
      granules.at(at) = {.stream = taken.stream, .fence = taken.fence};
    }
    charged += taken.charge;
    live.erase(taken.address);
    heap.put_back(taken);
  };
  for (int step = 0; step < 20000 && sound; ++step) {
    const Heap::Stream stream = pick(4);
    switch (pick(8)) {
      case 0: {
        if (!spans.empty() && pick(8) == 0) {
          const auto span = *std::next(spans.begin(), static_cast<long>(pick(spans.size())));
          heap.close(span.first);
          closed.insert(span);
        }
        if (heap.reserved_bytes() > 40 * kSpan) break;
        const std::uint64_t bytes = (1 + pick(64)) * Heap::kGranule;
        heap.add({next_span, bytes});
        spans[next_span] = bytes;
        for (std::uint64_t at = next_span; at < next_span + bytes; at += Heap::kGranule) granules[at] = {};
        next_span += bytes;
        break;
      }
      case 1:
      case 2:
      case 3:
        if (const auto taken = heap.take(1 + pick(20 * Heap::kGranule), stream)) {
          enter(*taken, stream, false);
          if (pick(8) == 0) back(*taken);
        }
        break;
      case 4:
        if (const auto taken = heap.take_behind(1 + pick(20 * Heap::kGranule))) {
          enter(*taken, stream, true);
          if (pick(4) == 0) back(*taken);
        }
        break;
      case 5:
      case 6: {
        if (live.empty()) break;
        auto block = std::next(live.begin(), static_cast<long>(pick(live.size())));
        const Heap::Fence fence = pick(4) == 0 ? 0 : ++last_fence;
        if (fence != 0) outstanding.push_back({fence, block->first});
        for (std::uint64_t at = block->first; at < block->first + block->second.bytes; at += Heap::kGranule) {
          granules.at(at) = {.stream = stream, .fence = fence};
        }
        if (fence != 0) charged += block->second.charge;
        if (fence != 0) {
          heap.give_behind_its_own(block->first, stream, fence, block->second.charge);
        } else {
          heap.give(block->first, stream, fence, block->second.charge);
        }
        live.erase(block);
        break;
      }
      default: {
        if (outstanding.empty()) break;
        // Fences of one stream are passed in order; those of all streams in order do that, too.
        const auto [fence, address] = outstanding.front();
        outstanding.erase(outstanding.begin());
        charged -= heap.passed(fence, address);
        for (auto& [at, granule] : granules) {
          if (granule.fence != 0 && granule.fence <= fence) granule.fence = 0;
        }
        if (pick(4) != 0) break;  // searching for them joins blocks
        for (const Heap::Span& span : heap.empty_spans()) {
          if (pick(2) == 0) continue;
          for (std::uint64_t at = span.address; at < span.address + span.bytes; at += Heap::kGranule) {
            sound = sound && granules.at(at).block == 0 && granules.at(at).fence == 0;
            granules.erase(at);
          }
          heap.remove(span.address);
          spans.erase(span.address);
          closed.erase(span.address);
        }
        break;
      }
    }
    std::uint64_t used = 0;
    for (const auto& [address, block] : live) used += block.bytes;
    sound = sound && heap.used_bytes() == used && heap.pending_charge() == charged &&
            heap.reserved_bytes() == granules.size() * Heap::kGranule;
    if (pick(16) == 0) {
      std::uint64_t empty = 0;
      for (const Heap::Span& span : heap.empty_spans()) empty += span.bytes;
      sound = sound && heap.empty_bytes() == empty;
    }
    std::uint64_t unused = 0;
    for (const auto& [address, bytes] : spans) {
      const auto block = live.lower_bound(address);
      if (block == live.end() || block->first - address >= bytes) unused += bytes;
    }
    sound = sound && heap.unused_bytes() == unused;
    if (!sound) FAIL("unsound after step " << step);
  }
  for (const auto& [address, block] : live) heap.give(address, 0, 0, block.charge);
  for (const auto& [fence, address] : outstanding) charged -= heap.passed(fence, address);
  CHECK(charged == 0);
  CHECK(heap.pending_charge() == 0);
  CHECK(heap.used_bytes() == 0);
  for (const Heap::Span& span : heap.empty_spans()) heap.remove(span.address);
  CHECK(heap.reserved_bytes() == 0);
}
