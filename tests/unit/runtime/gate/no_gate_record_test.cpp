// Threads whose records at the gate could not be allocated: the closer does not see them.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "generated/driver_gates.h"
#include "runtime/memory/memory.h"
#include "runtime/monitor/monitor.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_driver.h"

using namespace rota;
using namespace std::chrono_literals;
using test::eventually;

namespace {

std::atomic<bool> refuses{false};

api::CUresult look() {
  return gates::cuMemAdvise(0x1000, 1, api::CU_MEM_ADVISE_SET_READ_MOSTLY, 0);
}

std::atomic<int> looks{0};

struct Unseeing {
  Unseeing() {
    looks.store(0);
    driver.set<api::cuMemAdvise_fn>(Symbol::k_cuMemAdvise, [](auto...) {
      ++looks;
      return api::CUDA_SUCCESS;
    });
    refuses.store(true);
  }
  ~Unseeing() {
    refuses.store(false);
    gate::out_of_place.store(false);
  }
  test::FakeDriver driver;
};

}  // namespace

// Only records are allocated in this way: aligned to a cache line, with null on failure.
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  if (refuses.load()) return nullptr;
  const auto to = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(to, (bytes + to - 1) / to * to);
}

TEST_CASE("a thread whose record cannot be allocated pins the process's memory before its call goes on") {
  const Unseeing unseeing;
  gate::Gate gate;
  driver::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory{ledger, {.backend = memory::Choice::kSwap, .limit_bytes = UINT64_MAX, .move_out = true}};
  monitor::Monitor monitor(gate, contexts, memory);
  CHECK_FALSE(memory.swap().pinned());
  std::thread([] { look(); }).join();
  CHECK(looks.load() == 1);
  CHECK(memory.swap().pinned());
}

TEST_CASE("threads without records wait at the closed gate while memory is out of place, however many they are") {
  const Unseeing unseeing;
  gate::Gate gate;
  gate.close();
  gate::out_of_place.store(true);
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; ++number) threads.emplace_back([] { look(); });
  CHECK(eventually([&] { return gate.standing() + static_cast<unsigned>(looks.load()) == 3; }));
  CHECK(looks.load() == 0);
  gate::out_of_place.store(false);
  gate.open();
  for (std::thread& thread : threads) thread.join();
  CHECK(looks.load() == 3);
}

TEST_CASE("rota's own work of a thread without a record is done while the gate is open, and not while it is closed") {
  const Unseeing unseeing;
  gate::Gate gate;
  int done = 0;
  std::thread([&] {
    CHECK(gate.run_if_open(0, [&] { ++done; }));
    gate.close();
    CHECK_FALSE(gate.run_if_open(0, [&] { ++done; }));
    gate.open();
  }).join();
  CHECK(done == 1);
}
