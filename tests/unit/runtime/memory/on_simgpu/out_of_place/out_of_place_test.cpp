// No call is missed: every function of the driver that takes a device address, with evicted memory in each place where
// it takes one. Calls that submit or examine addresses wait, and the driver is called with everything in its place;
// queries are answered at once.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/runtime/memory/on_simgpu/out_of_place/program.h"

using namespace rota;
using namespace rota::test;

namespace {

// Calls that are tried at the same time, each with memory of its own.
constexpr std::size_t kTogether = 8;
// Seconds that a child may take; what hangs is ended by a signal.
constexpr unsigned kPatience = 60;

struct Case {
  const Place* place;
  Kind kind;
  int variant;
};

enum class Afterwards : std::uint8_t { kMoves, kStays, kPartStays, kNotTried };

std::string in_child(const std::vector<Case>& cases, Afterwards afterwards) {
  return on_simgpu({.mode = Mode::kSwap, .limit = {}, .replace = watched, .neighbour = {}}, [&] {
    alarm(kPatience);
    Turns turns;
    const Fixtures fixtures;
    for (std::size_t next = 0; next < cases.size(); next += kTogether) {
      std::deque<Trial> trials;
      for (std::size_t index = next; index < std::min(next + kTogether, cases.size()); ++index) {
        trials.emplace_back(fixtures, *cases[index].place, cases[index].kind, cases[index].variant);
      }
      try_out(turns, fixtures, trials);
      if (afterwards == Afterwards::kStays) {
        EXPECT(!turns.take_away());
        EXPECT(runtime().memory.swap().all_in_place());
      }
      if (afterwards == Afterwards::kPartStays) {
        CUdeviceptr other = 0;
        EXPECT_OK(cu.cuMemAlloc_v2(&other, 2 * kMiB));
        EXPECT(!turns.take_away());
        const memory::SwapBackend& swap = runtime().memory.swap();
        EXPECT(swap.resident_bytes(0) == swap.pinned_bytes(0) && !swap.all_in_place());
      }
    }
  });
}

bool is_of_a_range(Then then) {
  return then == Then::kPinsRange || then == Then::kPinsRangeFirst;
}

bool is_by_itself(Then then) {
  return then == Then::kPins || is_of_a_range(then) || then == Then::kExports || then == Then::kCaptures;
}

void check_all(const std::vector<Row>& rows) {
  std::vector<Case> cases;
  for (const Place& place : places()) {
    const Row* row = row_of(place);
    if (row == nullptr || row < rows.data() || row >= rows.data() + rows.size() || is_by_itself(row->then)) continue;
    const bool all_kinds = row->then != Then::kWaits;
    for (const Kind kind : {Kind::kLarge, Kind::kSmall, Kind::kPooled}) {
      for (int variant = 0; variant < row->variants && (all_kinds || kind == Kind::kLarge); ++variant) {
        cases.push_back({&place, kind, variant});
      }
    }
  }
  REQUIRE(!cases.empty());
  CHECK(in_child(cases, Afterwards::kMoves) == "");
}

}  // namespace

TEST_CASE(
    "each place where a function takes a device address has a row that says what happens while memory is evicted") {
  for (const Place& place : places()) {
    INFO(name_of(place.symbol) << " at " << place.text);
    const Row* row = row_of(place);
    CHECKED_ELSE(row != nullptr) {
      FAIL_CHECK("no row in tests/unit/runtime/memory/on_simgpu/out_of_place");
    }
  }
  for (const std::vector<Row>* rows : {&copy_rows(), &graph_rows(), &other_rows()}) {
    for (const Row& row : *rows) {
      for (const std::string_view name : row.names) {
        INFO(name);
        const bool listed = std::any_of(places().begin(), places().end(), [&](const Place& place) {
          return name.substr(0, name.find(' ')) == plain_name(place.symbol);
        });
        CHECK(listed);
      }
    }
  }
}

TEST_CASE("copies, sets and stream memory operations of evicted memory wait until it is restored, and then work") {
  check_all(copy_rows());
}

TEST_CASE("launches, graphs and changes of their nodes with evicted memory wait until it is restored, and then work") {
  check_all(graph_rows());
}

TEST_CASE("queries of evicted memory are answered at once as before, and calls that need it in place wait") {
  check_all(other_rows());
}

TEST_CASE("a call that hands out evicted memory restores it first, and nothing moves from then on") {
  for (const Place& place : places()) {
    const Row* row = row_of(place);
    if (row == nullptr || row->then != Then::kPins) continue;
    INFO(name_of(place.symbol) << " at " << place.text);
    CHECK(in_child({{&place, Kind::kLarge, 0}}, Afterwards::kStays) == "");
  }
}

TEST_CASE(
    "a call that exports or binds evicted memory by its address restores it first, and only that stays from then on") {
  for (const Place& place : places()) {
    const Row* row = row_of(place);
    if (row == nullptr || !is_of_a_range(row->then)) continue;
    INFO(name_of(place.symbol) << " at " << place.text);
    CHECK(in_child({{&place, Kind::kLarge, 0}}, Afterwards::kPartStays) == "");
  }
}

TEST_CASE("an IPC handle of evicted memory is made at once, and the memory moves as before") {
  for (const Place& place : places()) {
    const Row* row = row_of(place);
    if (row == nullptr || row->then != Then::kExports) continue;
    INFO(name_of(place.symbol) << " at " << place.text);
    for (const Kind kind : {Kind::kLarge, Kind::kSmall}) CHECK(in_child({{&place, kind, 0}}, Afterwards::kMoves) == "");
  }
}

TEST_CASE("a query for the P2P tokens of evicted memory restores it first, and only it stays from then on") {
  for (Place place : places()) {
    if (std::string_view(name_of(place.symbol)).substr(0, 21) != "cuPointerGetAttribute") continue;
    place.text = "ptr, for its tokens";
    INFO(name_of(place.symbol));
    for (const Kind kind : {Kind::kLarge, Kind::kSmall, Kind::kPooled}) {
      CHECK(in_child({{&place, kind, 0}}, Afterwards::kPartStays) == "");
    }
  }
}

TEST_CASE("a capture that begins while memory is evicted waits until it is restored") {
  for (const Place& place : places()) {
    const Row* row = row_of(place);
    if (row == nullptr || row->then != Then::kCaptures) continue;
    INFO(name_of(place.symbol));
    CHECK(in_child({{&place, Kind::kLarge, 0}}, Afterwards::kNotTried) == "");
  }
}

TEST_CASE("work in a stream waits for evicted memory also where its thread has no context, and a free does not") {
  CHECK(on_simgpu({.mode = Mode::kSwap, .limit = {}, .replace = {}, .neighbour = {}}, [] {
          alarm(kPatience);
          Turns turns;
          const Fixtures fixtures;
          CUdeviceptr address = 0;
          CUdeviceptr other = 0;
          EXPECT_OK(cu.cuMemAlloc_v2(&address, 2 * kMiB));
          EXPECT_OK(cu.cuMemAlloc_v2(&other, 2 * kMiB));
          EXPECT_OK(cu.cuMemsetD8_v2(address, 1, 64));
          EXPECT_OK(cu.cuCtxSynchronize());
          EXPECT(turns.take_away());
          std::atomic<int> over{0};
          std::vector<std::thread> bare;
          for (const std::function<CUresult()>& call : std::vector<std::function<CUresult()>>{
                   [&] { return cu.cuMemsetD8Async(address, 2, 64, fixtures.stream); },
                   [&] { return cu.cuMemcpyDtoDAsync_v2(fixtures.mapped, address + 64, 64, fixtures.stream); },
                   [&] {
                     CUdeviceptr words = address + 128;
                     unsigned long count = 16;
                     unsigned value = 0x03030303;
                     void* arguments[] = {&words, &count, &value};
                     return cu.cuLaunchKernel(fixtures.fill, 1, 1, 1, 32, 1, 1, 0, fixtures.stream, arguments, nullptr);
                   }}) {
            bare.emplace_back([call, &over] {
              EXPECT_OK(call());
              ++over;
            });
          }
          EXPECT(eventually([&] { return over.load() + runtime().gate.standing() >= 3; }));
          EXPECT(over == 0);
          std::thread([&] { EXPECT_OK(cu.cuMemFree_v2(other)); }).join();
          turns.give();
          for (std::thread& thread : bare) thread.join();
          EXPECT_OK(cu.cuCtxSynchronize());
          std::array<unsigned char, 192> bytes{};
          EXPECT_OK(cu.cuMemcpyDtoH_v2(bytes.data(), address, bytes.size()));
          EXPECT(bytes[0] == 2 && bytes[128] == 3);
        }) == "");
}

namespace {

// Streams that the driver was told to wait for.
std::vector<CUstream> waited_for;

void* waits_are_noted(Symbol symbol, void* simulated) {
  if (symbol != Symbol::k_cuStreamSynchronize) return nullptr;
  static cuStreamSynchronize_fn* real_one = nullptr;
  real_one = reinterpret_cast<cuStreamSynchronize_fn*>(simulated);
  cuStreamSynchronize_fn* const noting = [](CUstream stream) {
    waited_for.push_back(stream);
    return real_one(stream);
  };
  return reinterpret_cast<void*>(noting);
}

}  // namespace

TEST_CASE("calls that touch extents which the program has made synchronous wait for their end, also after a swap") {
  CHECK(on_simgpu({.mode = Mode::kSwap, .limit = {}, .replace = waits_are_noted, .neighbour = {}}, [] {
          alarm(kPatience);
          Turns turns;
          const Fixtures fixtures;
          for (const std::uint64_t bytes : {std::uint64_t{2 * kMiB}, std::uint64_t{4096}}) {
            CUdeviceptr address = 0;
            EXPECT_OK(cu.cuMemAlloc_v2(&address, bytes));
            CUdeviceptr other = 0;
            EXPECT_OK(cu.cuMemAlloc_v2(&other, bytes));
            const auto waits = [&](CUstream stream, const std::function<CUresult()>& call) {
              waited_for.clear();
              EXPECT_OK(call());
              return waited_for == std::vector<CUstream>{stream};
            };
            const auto reads = [&](CUdeviceptr where) {
              unsigned value = 0;
              EXPECT_OK(cu.cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, where));
              return value & 0xff;
            };
            for (const unsigned wanted : {1U, 0U}) {
              EXPECT_OK(cu.cuPointerSetAttribute(&wanted, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address + 8));
              for (int swaps = 0; swaps < 2; ++swaps) {
                const bool synchronous = wanted != 0;
                EXPECT(reads(address) == wanted);
                EXPECT(reads(other) == 0);
                EXPECT(waits(nullptr, [&] { return cu.cuMemsetD8_v2(address, 1, 64); }) == synchronous);
                EXPECT(waits(kPerThread, [&] { return cu.cuMemsetD32_v2_ptds(address, 1, 16); }) == synchronous);
                EXPECT(waits(nullptr, [&] { return cu.cuMemcpyDtoD_v2(fixtures.mapped, address, 64); }) == synchronous);
                EXPECT(waits(kPerThread, [&] { return cu.cuMemcpy_ptds(address, fixtures.mapped, 64); }) ==
                       synchronous);
                EXPECT(!waits(nullptr, [&] { return cu.cuMemsetD8_v2(other, 1, 64); }));
                EXPECT(turns.take_away());
                turns.give();
                EXPECT_OK(cu.cuMemsetD8_v2(fixtures.mapped, 0, 1));
              }
            }
            const unsigned on = 1;
            EXPECT_OK(cu.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, other));
            EXPECT_OK(cu.cuMemFree_v2(other));
            EXPECT_OK(cu.cuMemAlloc_v2(&other, bytes));
            EXPECT(reads(other) == 0);
          }
        }) == "");
}

TEST_CASE("a process that has loaded a library which uses GPU memory privately keeps its memory on the GPU") {
  CHECK(on_simgpu({.mode = Mode::kSwap, .limit = {}, .replace = {}, .neighbour = {}}, [] {
          alarm(kPatience);
          Turns turns;
          const Fixtures fixtures;
          CUdeviceptr address = 0;
          EXPECT_OK(cu.cuMemAlloc_v2(&address, 2 * kMiB));
          EXPECT(turns.take_away());
          turns.give();
          EXPECT_OK(cu.cuMemsetD8_v2(address, 1, 64));
          char folder[] = "/tmp/rota-library-XXXXXX";
          EXPECT(mkdtemp(folder) != nullptr);
          const std::string path = std::string(folder) + "/libnvoptix.so.1";
          const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
          EXPECT(mmap(nullptr, 1, PROT_READ, MAP_SHARED, file, 0) != MAP_FAILED);
          EXPECT(!turns.take_away());
          EXPECT(runtime().memory.swap().all_in_place() && runtime().memory.swap().pinned());
          std::error_code ignored;
          std::filesystem::remove_all(folder, ignored);
        }) == "");
}
