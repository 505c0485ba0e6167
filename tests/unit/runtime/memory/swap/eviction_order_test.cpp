// Which extents are evicted first, which copies are given up first, and which extents are restored first.
#include "runtime/memory/swap/eviction_order.h"

#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "runtime/memory/swap/hand_over.h"
#include "scheduler/base/host_memory.h"
#include "scheduler/rules/largest_extent.h"

using namespace rota::memory;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr bool kWithoutCopy = true;
constexpr bool kCopied = false;

using Addresses = std::vector<std::uint64_t>;

Addresses order(std::deque<Candidate> all, std::uint64_t handed_over = 0) {
  Addresses addresses;
  for (const Candidate& each : eviction_order(std::move(all), handed_over)) addresses.push_back(each.address);
  return addresses;
}

// What is evicted for `bytes`, at most `most` of it at a time.
Addresses chosen(std::deque<Candidate> all, std::uint64_t bytes, std::uint64_t most = UINT64_MAX) {
  Addresses addresses;
  std::deque<Candidate> left = eviction_order(std::move(all));
  for (std::uint64_t sum = 0; sum < bytes && !left.empty();) {
    const auto next = next_to_evict(left, bytes - sum, most);
    if (!next) break;
    sum += next->bytes;
    addresses.push_back(next->address);
  }
  return addresses;
}

}  // namespace

TEST_CASE("extents that need no copy are evicted first, then the largest, then the one at the higher address") {
  CHECK(order({{kCopied, 32 * kMiB, 1},
               {kCopied, 128 * kMiB, 2},
               {kWithoutCopy, 2 * kMiB, 3},
               {kCopied, 32 * kMiB, 4},
               {kWithoutCopy, 4 * kMiB, 5}}) == Addresses{5, 3, 2, 4, 1});
  CHECK(order({}) == Addresses{});
}

TEST_CASE("where much is handed over, two small extents are evicted before the first large one that is copied") {
  const std::uint64_t much = 4 * rota::protocol::kLargestExtent;
  const std::deque<Candidate> all{{kCopied, 128 * kMiB, 1}, {kCopied, 64 * kMiB, 2}, {kCopied, 8 * kMiB, 3},
                                  {kCopied, 4 * kMiB, 4},   {kCopied, 2 * kMiB, 5},  {kWithoutCopy, 2 * kMiB, 6}};
  CHECK(order(all, much - 1) == Addresses{6, 1, 2, 3, 4, 5});
  // The two smallest of those that are worth handing over.
  CHECK(order(all, much) == Addresses{6, 1, 2, 3, 4, 5});
  std::deque<Candidate> more = all;
  more.push_back({kCopied, kLeastHandedOver, 7});
  more.push_back({kCopied, 2 * kLeastHandedOver, 8});
  CHECK(order(more, much) == Addresses{6, 8, 7, 1, 2, 3, 4, 5});
  CHECK(order({{kCopied, 2 * kMiB, 1}}, much) == Addresses{1});  // none is
  CHECK(order({}, much) == Addresses{});
}

TEST_CASE("the last evicted extent is no larger than the remaining deficit, if there is such a one") {
  const std::deque<Candidate> all{{kCopied, 128 * kMiB, 1}, {kCopied, 32 * kMiB, 2}, {kCopied, 8 * kMiB, 3}};
  CHECK(chosen(all, 8 * kMiB) == Addresses{3});
  CHECK(chosen(all, 9 * kMiB) == Addresses{2});
  CHECK(chosen(all, 129 * kMiB) == Addresses{1, 3});
  CHECK(chosen(all, 168 * kMiB) == Addresses{1, 2, 3});
  CHECK(chosen(all, UINT64_MAX) == Addresses{1, 2, 3});
}

TEST_CASE("a smaller extent that must be copied is not evicted instead of one that needs no copy") {
  const std::deque<Candidate> all{{kWithoutCopy, 128 * kMiB, 1}, {kCopied, 2 * kMiB, 2}};
  CHECK(chosen(all, 2 * kMiB) == Addresses{1});
}

TEST_CASE("what has more bytes than are examined at a time is not chosen, and stays") {
  std::deque<Candidate> all = eviction_order({{kCopied, 128 * kMiB, 1}, {kCopied, 32 * kMiB, 2}});
  CHECK_FALSE(next_to_evict(all, UINT64_MAX, 127 * kMiB));
  CHECK(all.size() == 2);
  CHECK(next_to_evict(all, UINT64_MAX, 128 * kMiB)->address == 1);
  CHECK(next_to_evict(all, UINT64_MAX, 128 * kMiB)->address == 2);
  CHECK(all.empty());
}

TEST_CASE("larger extents that were skipped can be evicted later, if the smaller one turns out to be pinned") {
  std::deque<Candidate> all = eviction_order({{kCopied, 128 * kMiB, 1}, {kCopied, 8 * kMiB, 2}});
  CHECK(next_to_evict(all, 8 * kMiB)->address == 2);
  CHECK(next_to_evict(all, 8 * kMiB)->address == 1);
}

TEST_CASE("copies are given up in the opposite order of eviction, those of unused extents at the very end") {
  Addresses addresses;
  for (const Copy& each : discard_order({{.unused = true, .unchanged = false, .bytes = 2 * kMiB, .address = 1},
                                         {.unused = false, .unchanged = true, .bytes = 2 * kMiB, .address = 2},
                                         {.unused = false, .unchanged = false, .bytes = 128 * kMiB, .address = 3},
                                         {.unused = false, .unchanged = false, .bytes = 2 * kMiB, .address = 4}})) {
    addresses.push_back(each.address);
  }
  CHECK(addresses == Addresses{4, 3, 2, 1});
}

TEST_CASE("an extent for which memory was handed over is restored first, then the first large one, small ones last") {
  const std::vector<std::uint64_t> sizes{2 * kMiB, kSmallExtent, 2 * kSmallExtent, 4 * kSmallExtent};
  const auto bytes = [&](std::size_t index) { return sizes[index]; };
  const auto next = [&](std::size_t handed_over, std::size_t count) {
    return next_to_restore(count, [&](std::size_t index) { return index == handed_over; }, bytes);
  };
  constexpr std::size_t kNone = 99;
  CHECK(next(kNone, 4) == 2);
  CHECK(next(3, 4) == 3);
  CHECK(next(1, 4) == 1);
  CHECK(next(kNone, 2) == 0);
}
