// Random programs with several streams and pools, whose memory rota serves, against a model, in which vector clocks
// decide which stream may have which memory.
#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "generated/driver_real.h"
#include "tests/unit/runtime/memory/quick_fixture.h"

#ifndef HEAP_SEEDS
#define HEAP_SEEDS 10
#endif

using namespace rota;
using namespace rota::memory;
using namespace rota::test;

namespace {

constexpr std::size_t kStreams = 4;
constexpr int kSteps = 1500;
constexpr std::uint64_t kGranule = Heap::kGranule;

using Clock = std::array<std::uint64_t, kStreams>;

// For each stream: how far its work has been submitted, which of the others' work comes before it, and how far it has
// run.
struct Streams {
  std::array<Clock, kStreams> clocks{};
  std::array<std::vector<Clock>, kStreams> submitted;
  std::array<std::uint64_t, kStreams> finished{};
  struct Recorded {
    std::size_t stream;
    Clock clock;
  };
  std::map<api::CUevent, Recorded> events;

  std::uint64_t& own(std::size_t stream) { return clocks[stream][stream]; }
  void submit(std::size_t stream) {
    ++own(stream);
    submitted[stream].push_back(clocks[stream]);
  }
  void finish(std::size_t stream, std::uint64_t upto) {
    if (finished[stream] >= upto) return;
    finished[stream] = upto;
    const Clock before = submitted[stream][upto - 1];
    for (std::size_t other = 0; other < kStreams; ++other) {
      if (other != stream) finish(other, before[other]);
    }
  }
  void wait(std::size_t stream, const Clock& upto) {
    for (std::size_t other = 0; other < kStreams; ++other) {
      clocks[stream][other] = std::max(clocks[stream][other], upto[other]);
    }
    submit(stream);
  }
};

Streams streams;

api::CUstream handle_of(std::size_t stream) {
  return reinterpret_cast<api::CUstream>(std::uintptr_t{0x1000} * (stream + 1));
}
std::size_t stream_of(api::CUstream handle) {
  return reinterpret_cast<std::uintptr_t>(handle) / 0x1000 - 1;
}

class Program : public Swapped {
 public:
  explicit Program(std::uint64_t seed)
      : Swapped(limit_of(seed)), random_(seed), limited_(limit_of(seed) != UINT64_MAX) {
    streams = {};
    driver.set<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, [](api::CUevent event, api::CUstream stream) {
      const std::size_t in = stream_of(stream);
      streams.submit(in);
      streams.events[event] = {in, streams.clocks[in]};
      return api::CUDA_SUCCESS;
    });
    driver.set<api::cuEventQuery_fn>(Symbol::k_cuEventQuery, [](api::CUevent event) {
      const auto& [stream, clock] = streams.events.at(event);
      return streams.finished[stream] >= clock[stream] ? api::CUDA_SUCCESS : api::CUDA_ERROR_NOT_READY;
    });
    driver.set<api::cuStreamWaitEvent_fn>(Symbol::k_cuStreamWaitEvent,
                                          [](api::CUstream stream, api::CUevent event, unsigned) {
                                            streams.wait(stream_of(stream), streams.events.at(event).clock);
                                            return api::CUDA_SUCCESS;
                                          });
    may_wait = static_cast<int>(below(2));
    const std::uint64_t count = 1 + below(3);
    for (std::uint64_t pool = 0; pool < count; ++pool) pools_.push_back(made_pool());
    const std::uint64_t sizes = 1 + below(12);
    for (std::uint64_t size = 0; size < sizes; ++size) {
      sizes_.push_back(1 + (below(3) != 0 ? below(20'000) : below(3 * kMiB)));
    }
  }

  void step() {
    const std::uint64_t what = below(100);
    if (what < 40) return allocate();
    if (what < 78) return free();
    const std::size_t stream = below(kStreams);
    if (what < 84) {
      const std::uint64_t left = streams.own(stream) - streams.finished[stream];
      return streams.finish(stream, streams.finished[stream] + below(left + 1));
    }
    if (what < 86) return static_cast<void>(memory.sweep_deferred());
    if (what < 87) return memory.trim_pool(any_pool(), below(4) * kMiB);
    if (what < 88) {
      threshold = below(2) != 0 ? UINT64_MAX : below(10) * kMiB;
      return memory.pool_attribute_set(any_pool(), api::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    }
    if (what < 89) return memory.collect_deferred();
    if (what < 90) return below(10) == 0 ? end_pool() : void();
    if (what < 93) return free_again();
    if (what < 96) return streams.wait(stream, streams.clocks[below(kStreams)]);
    look();
  }

  void end() {
    for (const auto& [address, block] : live_) {
      REQUIRE(memory.free_async(address, handle_of(block.stream), false, no_call) == api::CUDA_SUCCESS);
    }
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      streams.submit(stream);
      streams.finish(stream, streams.own(stream));
    }
    CHECK(live_bytes() == 0);
    CHECK(ledger.entries() == 0);
    for (const api::CUmemoryPool pool : pools_) memory.trim_pool(pool, 0);
    CHECK(driver.dead_uses == 0);
  }

 private:
  struct Block {
    std::uint64_t bytes;
    std::size_t stream;
    api::CUmemoryPool pool;  // null: it has been destroyed
  };
  struct Use {  // of memory that has been freed, up to a point in a stream
    std::size_t stream;
    std::uint64_t upto;
  };

  static std::uint64_t limit_of(std::uint64_t seed) { return seed % 2 == 0 ? UINT64_MAX : (4 + seed % 20) * kMiB; }
  std::uint64_t below(std::uint64_t most) { return random_() % most; }
  api::CUmemoryPool any_pool() { return pools_[below(pools_.size())]; }
  api::CUmemoryPool made_pool() {
    next_pool_ += 0x1000;
    return made(reinterpret_cast<api::CUmemoryPool>(next_pool_));
  }
  api::CUmemoryPool made(api::CUmemoryPool pool) {
    memory.pool_made(pool);
    memory.pools().made(pool, Pools::described(plain_pool()));
    return pool;
  }

  void allocate() {
    const api::CUmemoryPool pool = any_pool();
    const std::size_t stream = below(kStreams);
    const std::uint64_t bytes = below(10) == 0 ? 1 + below(kMiB) : sizes_[below(sizes_.size())];
    api::CUdeviceptr address = 0;
    const api::CUresult result = memory.allocate_async(
        {.address = &address, .bytes = bytes, .pool = pool, .stream = handle_of(stream), .capturing = below(40) == 0},
        no_call);
    if (result != api::CUDA_SUCCESS) {
      REQUIRE(limited_);
      return;
    }
    const std::uint64_t end = address + Heap::rounded(bytes);
    const auto next = live_.lower_bound(address);
    if (next != live_.end()) REQUIRE(next->first >= end);
    if (next != live_.begin()) REQUIRE(std::prev(next)->first + std::prev(next)->second.bytes <= address);
    for (std::uint64_t granule = address; granule < end; granule += kGranule) {
      const auto used = used_.find(granule);
      if (used == used_.end()) continue;
      std::erase_if(used->second, [](const Use& use) { return streams.finished[use.stream] >= use.upto; });
      for (const Use& use : used->second) REQUIRE(streams.clocks[stream][use.stream] >= use.upto);
    }
    std::optional<Memory::Block> block;
    memory.find_block(address, &block);
    REQUIRE(block);
    REQUIRE(block->bytes == bytes);
    REQUIRE(block->pool == pool);
    REQUIRE(numbers_.insert(block->buffer_id).second);
    live_[address] = {bytes, stream, pool};
    streams.submit(stream);
  }

  void free() {
    if (live_.empty()) return;
    const auto chosen = std::next(live_.begin(), static_cast<std::ptrdiff_t>(below(live_.size())));
    const auto [address, block] = *chosen;
    live_.erase(chosen);
    freed_.push_back(address);
    if (below(20) == 0) {  // without a stream: its own use is over
      streams.finish(block.stream, streams.own(block.stream));
      REQUIRE(memory.free_waiting(address, false, no_call) == api::CUDA_SUCCESS);
      return;
    }
    const std::size_t stream = below(4) != 0 ? block.stream : below(kStreams);
    if (stream != block.stream) streams.wait(stream, streams.clocks[block.stream]);
    REQUIRE(memory.free_async(address, handle_of(stream), false, no_call, below(40) == 0) == api::CUDA_SUCCESS);
    for (std::uint64_t granule = address; granule < address + block.bytes; granule += kGranule) {
      used_[granule].push_back({stream, streams.own(stream)});
    }
  }

  void free_again() {
    if (freed_.empty()) return;
    const std::uint64_t address = freed_[below(freed_.size())];
    if (live_.contains(address)) return;
    std::optional<Memory::Block> block;
    memory.find_block(address, &block);
    if (block) {  // it may be part of another one by now
      CHECK(block->address != address);
      return;
    }
    const auto refused = [] { return api::CUDA_ERROR_INVALID_VALUE; };
    CHECK(memory.free_async(address, handle_of(0), false, refused, below(4) == 0) != api::CUDA_SUCCESS);
    CHECK(memory.free_waiting(address, false, refused) != api::CUDA_SUCCESS);
  }

  void end_pool() {
    api::CUmemoryPool& pool = pools_[below(pools_.size())];
    memory.pool_destroyed(memory.serving(pool));
    memory.pools().forget(pool);
    for (auto& [address, block] : live_) {
      if (block.pool == pool) block.pool = nullptr;
    }
    pool = below(2) != 0 ? made(pool) : made_pool();
  }

  void look() {
    std::uint64_t all = 0;
    for (const auto& [address, block] : live_) all += block.bytes;
    REQUIRE(ledger.live_bytes(0) >= all);
    for (const api::CUmemoryPool pool : pools_) {
      std::uint64_t expected = 0;
      for (const auto& [address, block] : live_) {
        if (block.pool == pool) expected += Heap::rounded(block.bytes);
      }
      const auto figure = [&](api::CUmemPool_attribute which) {
        std::uint64_t value = 0;
        memory.add_pool_attribute(pool, which, &value);
        return value;
      };
      const std::uint64_t used = figure(api::CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
      REQUIRE(used == expected);
      REQUIRE(figure(api::CU_MEMPOOL_ATTR_USED_MEM_HIGH) >= used);
      REQUIRE(figure(api::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= used);
    }
  }

  std::mt19937_64 random_;
  const bool limited_;
  std::vector<api::CUmemoryPool> pools_;
  std::uintptr_t next_pool_ = 0xa000;
  std::vector<std::uint64_t> sizes_;
  std::map<std::uint64_t, Block> live_;
  std::vector<std::uint64_t> freed_;
  std::map<std::uint64_t, std::vector<Use>> used_;  // by granule
  std::set<std::uint64_t> numbers_;
};

}  // namespace

TEST_CASE("no random program gets memory that its stream may not have, or sees a figure that is not right") {
  for (std::uint64_t seed = 0; seed < HEAP_SEEDS; ++seed) {
    Program program(seed);
    for (int step = 0; step < kSteps; ++step) {
      CAPTURE(seed, step);
      program.step();
    }
    program.end();
  }
}
