// The ledger under threads; run under TSan too.
#include "runtime/memory/ledger.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <thread>
#include <vector>

using namespace rota;
using namespace rota::memory;

namespace {

Allocation at(std::uint64_t address, std::uint64_t bytes, int device = 0, Kind kind = Kind::kPlain) {
  return {.address = address, .bytes = bytes, .device = device, .kind = kind};
}

void put(Ledger& ledger, const Allocation& allocation) {
  REQUIRE(ledger.reserve(allocation.device, allocation.bytes, allocation.kind));
  ledger.add(allocation);
}

}  // namespace

TEST_CASE("nvshare 6: four threads that allocate and free lose no byte of the sum") {
  Ledger ledger;
  constexpr int kThreads = 4;
  constexpr std::uint64_t kEach = 2000;
  std::vector<std::uint64_t> kept(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::uint64_t own = 0;
      const std::uint64_t base = 0x700000000000 + (static_cast<std::uint64_t>(t) << 36);
      for (std::uint64_t i = 0; i < kEach; ++i) {
        const std::uint64_t bytes = 512 * (1 + random() % 100);
        const Kind kind = random() % 2 == 0 ? Kind::kConverted : Kind::kPlain;
        if (!ledger.reserve(0, bytes, kind)) std::abort();
        ledger.add(at(base + i * 65536, bytes, 0, kind));
        own += bytes;
        if (random() % 2 == 0) {
          ledger.finish_free(*ledger.begin_free(base + i * 65536));
          own -= bytes;
        }
      }
      kept[static_cast<std::size_t>(t)] = own;
    });
  }
  std::uint64_t sum = 0;
  for (std::thread& thread : threads) thread.join();
  for (const std::uint64_t own : kept) sum += own;
  CHECK(ledger.live_bytes(0) == sum);
  std::uint64_t listed = 0;
  std::uint64_t fixed = 0;
  for (const Allocation& entry : ledger.list(0, Kind::kConverted)) listed += entry.bytes;
  for (const Allocation& entry : ledger.list(0, Kind::kPlain)) fixed += entry.bytes;
  CHECK(listed + fixed == sum);
  CHECK(ledger.fixed_bytes(0) == fixed);
}

TEST_CASE("what the driver has not given yet is reserved, but not settled") {
  Ledger ledger;
  const auto settled = [&] {
    const Ledger::Settled now = ledger.settled(0);
    return std::pair(now.bytes, now.fixed);
  };
  REQUIRE(ledger.reserve(0, 70, Kind::kPlain));
  REQUIRE(ledger.reserve(0, 30, Kind::kConverted));  // it is not the driver that refuses this
  CHECK(ledger.live_bytes(0) == 100);
  CHECK(settled() == std::pair<std::uint64_t, std::uint64_t>(30, 0));
  ledger.settle(0, 70, Kind::kPlain);
  CHECK(settled() == std::pair<std::uint64_t, std::uint64_t>(100, 70));
  ledger.set_limit(0, 150);
  REQUIRE(ledger.reserve(0, 40, Kind::kPlain));
  CHECK_FALSE(ledger.reserve(0, 40, Kind::kPlain));
  ledger.cancel(0, 40, Kind::kPlain);
  CHECK(settled() == std::pair<std::uint64_t, std::uint64_t>(100, 70));
  CHECK(ledger.live_bytes(0) == 100);
}

TEST_CASE("a limit holds although many threads ask at once") {
  Ledger ledger;
  ledger.set_limit(0, 1000);
  std::atomic<std::uint64_t> granted{0};
  std::atomic<bool> passed{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        if (!ledger.reserve(0, 7, Kind::kPlain)) continue;
        if (granted.fetch_add(7) + 7 > 1000) passed.store(true);
        granted.fetch_sub(7);
        ledger.release(0, 7, Kind::kPlain);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(passed.load());
  CHECK(ledger.live_bytes(0) == 0);
  CHECK_FALSE(ledger.reserve(0, 1001, Kind::kPlain));
  CHECK_FALSE(ledger.reserve(0, UINT64_MAX, Kind::kPlain));
  CHECK(ledger.reserve(0, 1000, Kind::kPlain));
  CHECK_FALSE(ledger.reserve(0, 1, Kind::kPlain));
  CHECK_FALSE(ledger.reserve(0, UINT64_MAX - 10, Kind::kPlain));
}

TEST_CASE("one of two threads that free the same address gets it") {
  for (int round = 0; round < 200; ++round) {
    Ledger ledger;
    put(ledger, at(0x1000, 100));
    std::atomic<int> got{0};
    std::thread other([&] { got.fetch_add(ledger.begin_free(0x1000) ? 1 : 0); });
    got.fetch_add(ledger.begin_free(0x1000) ? 1 : 0);
    other.join();
    REQUIRE(got.load() == 1);
  }
}

TEST_CASE("an interior pointer finds its allocation, a pointer past the end none") {
  Ledger ledger;
  for (std::uint64_t i = 0; i < 500; ++i) put(ledger, at(0x700000000000 + i * 0x200000, 0x100000));
  CHECK(ledger.find(0x700000000000)->address == 0x700000000000);
  CHECK(ledger.find(0x700000000000 + 77 * 0x200000 + 0xfffff)->address == 0x700000000000 + 77 * 0x200000);
  CHECK_FALSE(ledger.find(0x700000000000 + 77 * 0x200000 + 0x100000));
  CHECK_FALSE(ledger.find(0x6fffffffffff));
  // An array's handle is a host address; nothing lies "inside" an array.
  put(ledger, at(0x1000 | kHandleBit, 1 << 30, 0, Kind::kArray));
  CHECK_FALSE(ledger.find(0x1800));
}

TEST_CASE("a context that ends takes its own memory out of the sum and no other's") {
  Ledger ledger;
  const auto gone = reinterpret_cast<api::CUcontext>(0x10);
  const auto stays = reinterpret_cast<api::CUcontext>(0x20);
  for (std::uint64_t i = 0; i < 100; ++i) {
    Allocation allocation = at(0x700000000000 + i * 4096, 10, static_cast<int>(i % 2));
    allocation.owner = Owner::of(i % 4 < 2 ? gone : stays);
    put(ledger, allocation);
  }
  CHECK(ledger.drop(Owner::of(gone)) == 50);
  CHECK(ledger.live_bytes(0) == 250);
  CHECK(ledger.live_bytes(1) == 250);
  CHECK(ledger.entries() == 50);
}

TEST_CASE("an inner address is found whatever the sizes, and wherever its allocation begins and ends") {
  // Compared with a model of plain lists. Sizes of every level, with edges of regions inside and adjacent neighbours.
  Ledger ledger;
  std::vector<Allocation> model;
  std::mt19937_64 random(7);
  std::uint64_t next = 0x700000000000 + 12345 * 512;
  for (int i = 0; i < 2000; ++i) {
    const unsigned bits = 9 + static_cast<unsigned>(random() % 23);  // 512 bytes to 4 GiB
    const std::uint64_t bytes = ((random() >> (64 - bits)) | 1) + 511;
    next += (random() % 3) * 512;
    model.push_back(at(next, bytes));
    put(ledger, model.back());
    next += bytes;
  }
  for (int i = 0; i < 700; ++i) {
    const std::size_t which = random() % model.size();
    const auto taken = ledger.begin_free(model[which].address);
    REQUIRE(taken);
    ledger.finish_free(*taken);
    model.erase(model.begin() + static_cast<std::ptrdiff_t>(which));
  }
  for (const Allocation& entry : model) {
    for (const std::uint64_t inside : {std::uint64_t{0}, entry.bytes / 2, entry.bytes - 1}) {
      const auto found = ledger.find(entry.address + inside);
      REQUIRE(found);
      REQUIRE(found->address == entry.address);
    }
    const bool touched = std::any_of(model.begin(), model.end(), [&](const Allocation& other) {
      return other.address == entry.address + entry.bytes;
    });
    if (!touched) REQUIRE_FALSE(ledger.find(entry.address + entry.bytes));
  }
  CHECK(ledger.entries() == model.size());
}

TEST_CASE(
    "what is being freed stays an entry and charged until it is gone, and another thread's is never taken for it") {
  Ledger ledger;
  put(ledger, at(0x700000000000, 1 << 20));
  const auto freed = ledger.begin_free(0x700000000000);
  REQUIRE(freed);
  CHECK(ledger.live_bytes(0) == 1 << 20);
  CHECK(ledger.find(0x700000000000)->freeing);
  CHECK_FALSE(ledger.begin_free(0x700000000000));
  // The driver has freed it, and given the address to another thread, with another size, before this thread returns.
  put(ledger, at(0x700000000000, 1 << 23));
  CHECK(ledger.live_bytes(0) == 1 << 23);
  ledger.finish_free(*freed);
  CHECK(ledger.live_bytes(0) == 1 << 23);
  CHECK_FALSE(ledger.find(0x700000000000)->freeing);
  CHECK(ledger.entries() == 1);
}

TEST_CASE(
    "a refused free leaves its entry as it was, and one whose use is over is room while the driver still has it") {
  Ledger ledger;
  ledger.set_limit(0, 1000);
  put(ledger, at(0x700000000000, 800));
  const auto first = ledger.begin_free(0x700000000000);
  ledger.cancel_free(*first);
  CHECK_FALSE(ledger.find(0x700000000000)->freeing);
  const auto second = ledger.begin_free(0x700000000000);
  ledger.uncharge(*second);
  ledger.uncharge(*second);
  CHECK(ledger.live_bytes(0) == 0);
  put(ledger, at(0x700000100000, 900));
  ledger.finish_free(*second);
  CHECK(ledger.live_bytes(0) == 900);
}

TEST_CASE("an address that the driver gives again without a free that we saw belongs to the new allocation") {
  Ledger ledger;
  put(ledger, at(0x700000000000, std::uint64_t{4} << 30));
  put(ledger, at(0x700000000000, 4096, 1));
  CHECK(ledger.live_bytes(0) == 0);
  CHECK(ledger.live_bytes(1) == 4096);
  CHECK_FALSE(ledger.find(0x700000000000 + 4096));
}

TEST_CASE("threads that look up addresses see an allocation whole or not at all while others come and go") {
  Ledger ledger;
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  // Across the edge of a region.
  constexpr std::uint64_t kBegin = 0x7000001ff000;
  std::thread looker([&] {
    while (!stop.load()) {
      for (const std::uint64_t address : {kBegin, kBegin + 0x800, kBegin + 0x1800}) {
        const auto found = ledger.find(address);
        if (found && (found->address != kBegin || found->bytes != 0x2000)) wrong.fetch_add(1);
      }
    }
  });
  for (int i = 0; i < 3000; ++i) {
    put(ledger, at(kBegin, 0x2000));
    ledger.finish_free(*ledger.begin_free(kBegin));
  }
  stop.store(true);
  looker.join();
  CHECK(wrong.load() == 0);
  CHECK(ledger.entries() == 0);
  CHECK(ledger.live_bytes(0) == 0);
}
