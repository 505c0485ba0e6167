// When the monitor returns memory to the driver that the program has freed in stream order. The driver's free waits for
// the GPU, and every other call waits with it, so this happens only while nothing of this process runs or is about to.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "generated/driver_gates.h"
#include "runtime/core/runtime.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_driver.h"
#include "tests/unit/runtime/monitor/fake_rotad.h"
#include "tests/unit/runtime/monitor/long_call.h"

using namespace rota;
using namespace std::chrono_literals;
using protocol::Kind;
using test::eventually;

namespace {

// The state when memory was returned to the driver.
std::atomic<int> frees;
std::atomic<bool> always_closed;
std::atomic<bool> always_idle;
std::atomic<bool> always_in_context;
gate::Gate* gate_of_program = nullptr;

// A process with one context that holds the GPU.
struct Holder {
  // `prepare` changes the driver before rota uses it.
  explicit Holder(void (*prepare)(test::FakeDriver&) = [](test::FakeDriver&) {}) {
    prepare(driver);
    frees = 0;
    always_closed = always_idle = always_in_context = true;
    gate_of_program = &parts.gate;
    driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, [](api::CUdeviceptr address) {
      if (address == 0) return api::CUDA_SUCCESS;  // only asks whether frees are refused
      test::FakeDriver& fake = test::FakeDriver::the();
      api::CUdevice device = 0;
      if (!gate_of_program->closed()) always_closed = false;
      if (fake.finished.load() < fake.submitted.load()) always_idle = false;
      if (real::cuCtxGetDevice(&device) != api::CUDA_SUCCESS) always_in_context = false;
      frees.fetch_add(1);
      return fake.take_memory(address);
    });
    parts.monitor.context_made(driver.enter_context(0), 0, true);
    std::thread first([this] {
      driver.enter_context(0);
      launch();
      driver.leave_context();
    });
    CHECK(rotad.next().kind == Kind::kWant);
    rotad.grant(1);
    first.join();
    CHECK(eventually([this] { return !parts.gate.closed(); }));
  }
  static void launch() { gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); }
  void finish() { driver.finished = driver.submitted.load(); }
  // Converted memory that the program has freed behind the work submitted so far.
  void free_in_order() {
    api::CUdeviceptr address = 0;
    REQUIRE(parts.memory.allocate(&address, 128 << 10, false) == api::CUDA_SUCCESS);
    REQUIRE(driver.managed_allocations.load() > 0);
    REQUIRE(parts.memory.free_async(address, nullptr, false, [] { return api::CUDA_ERROR_UNKNOWN; }) ==
            api::CUDA_SUCCESS);
  }

  test::FakeDriver driver;
  test::FakeRotad rotad;
  Runtime parts;
};

}  // namespace

TEST_CASE("while nobody waits, freed memory goes to an idle GPU's driver, behind the gate, which opens again") {
  Holder holder;
  holder.finish();
  holder.free_in_order();
  CHECK(eventually([&] { return !holder.parts.memory.has_deferred(); }));
  CHECK(frees.load() == 1);
  CHECK((always_closed && always_idle && always_in_context));
  CHECK(eventually([&] { return !holder.parts.gate.closed(); }));
  CHECK(holder.rotad.quiet());
  CHECK(holder.parts.ledger.live_bytes(0) == 0);
  Holder::launch();  // no thread waits at the gate
}

TEST_CASE("while the GPU works, freed memory stays, and the gate opens again after each look") {
  Holder holder;
  holder.finish();
  Holder::launch();
  holder.free_in_order();
  Holder::launch();
  holder.driver.finished = holder.driver.submitted.load() - 1;  // nothing uses it any more, while other work continues
  const int before = holder.driver.marks.load();
  CHECK(eventually([&] { return holder.driver.marks.load() >= before + 2; }));
  CHECK(frees.load() == 0);
  CHECK(eventually([&] { return !holder.parts.gate.closed(); }));
  Holder::launch();
  holder.finish();
  CHECK(eventually([&] { return frees.load() == 1; }));
  CHECK((always_closed && always_idle && always_in_context));
}

TEST_CASE("while anything captures, freed memory stays and the capture is left alone") {
  Holder holder;
  holder.finish();
  const auto stream = reinterpret_cast<api::CUstream>(0x5000);
  // The fake driver then treats every stream as capturing.
  const auto captures = [&](bool now) {
    return [&holder, now] {
      holder.driver.capturing = now;
      return api::CUDA_SUCCESS;
    };
  };
  Holder::launch();
  holder.free_in_order();
  REQUIRE(holder.parts.contexts.begin_capture(stream, false, captures(true)) == api::CUDA_SUCCESS);
  holder.finish();
  // Long enough for the monitor to check twice, which nothing else shows: checking during a capture must leave no
  // trace.
  std::this_thread::sleep_for(600ms);
  CHECK(frees.load() == 0);
  CHECK(holder.driver.broken_captures.load() == 0);
  CHECK(eventually([&] { return !holder.parts.gate.closed(); }));
  REQUIRE(holder.parts.contexts.end_capture(stream, false, captures(false)) == api::CUDA_SUCCESS);
  CHECK(eventually([&] { return frees.load() == 1; }));
  CHECK((always_closed && always_idle));
}

TEST_CASE("while a thread is inside the gate, freed memory stays, and the gate does not wait for the thread") {
  Holder holder;
  holder.finish();
  test::LongCall copy(holder.driver);
  holder.free_in_order();
  // The gate is closed and opened again, although no lease is given back.
  for (int look = 0; look < 2; ++look) {
    CHECK(eventually([&] { return holder.parts.gate.closed(); }));
    CHECK(eventually([&] { return !holder.parts.gate.closed(); }));
  }
  CHECK(frees.load() == 0);
  copy.end();
  CHECK(eventually([&] { return frees.load() == 1; }));
}

TEST_CASE("at the end of a turn, freed memory goes to the driver once the GPU is drained") {
  Holder holder;
  holder.finish();
  holder.rotad.somebody_waits(1, 1);
  Holder::launch();
  holder.free_in_order();
  REQUIRE(eventually([&] { return holder.parts.gate.closed(); }));
  CHECK(holder.rotad.quiet());
  CHECK(frees.load() == 0);
  holder.finish();
  CHECK(holder.rotad.next().kind == Kind::kGiveBack);
  CHECK(eventually([&] { return frees.load() == 1; }));
  CHECK((always_closed && always_idle && always_in_context));
  CHECK(holder.parts.gate.closed());
}

TEST_CASE("prepared pages go back to a host that is low while the GPU works") {
  static std::atomic<std::uint64_t> left;
  left = std::uint64_t{1} << 40;
  Holder holder;
  memory::HostPool& host = holder.parts.memory.swap().host();
  host.set_left([] { return left.load(); });
  const bool contended = GENERATE(false, true);
  holder.finish();
  Holder::launch();  // and continues
  if (contended) holder.rotad.somebody_waits(1);
  for (int step = 0; step < 8; ++step) REQUIRE(host.prepare(64 << 20));
  REQUIRE(host.cached_bytes() == 64 << 20);
  left = 100 << 20;
  const auto until = std::chrono::steady_clock::now() + 3s;
  while (host.cached_bytes() != 0 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(10ms);
  CAPTURE(contended);
  CHECK(host.cached_bytes() == 0);
  holder.finish();
}

namespace {

// Of a driver that pins: where it was asked to unpin.
std::atomic<int> unpinned;
std::atomic<int> beside_work;  // of those: while work ran, or the gate was open
std::atomic<void (*)()> when_unpinned;

void pins(test::FakeDriver& driver) {
  unpinned = beside_work = 0;
  when_unpinned = nullptr;
  driver.set<api::cuMemHostRegister_v2_fn>(Symbol::k_cuMemHostRegister_v2,
                                           [](void*, std::size_t, unsigned) { return api::CUDA_SUCCESS; });
  driver.set<api::cuMemHostUnregister_fn>(Symbol::k_cuMemHostUnregister, [](void*) {
    const test::FakeDriver& fake = test::FakeDriver::the();
    if (!gate_of_program->closed() || fake.finished.load() < fake.submitted.load()) ++beside_work;
    if (void (*const call)() = when_unpinned.load(); call != nullptr) call();
    ++unpinned;
    return api::CUDA_SUCCESS;
  });
}

// A program that has pinned memory of the host's to spare, and work that continues.
struct Sparing : Holder {
  Sparing() : Holder(pins) {
    host().set_left([] { return std::uint64_t{1} << 40; });
    void* const pinned = host().take(kSpare);
    REQUIRE(pinned != nullptr);
    host().give(pinned, kSpare);
    finish();
    launch();
  }
  // By a thread of its own: one remembers where its calls are metered, and the next test has another meter.
  void launch() {
    std::thread([this] {
      driver.enter_context(0);
      Holder::launch();
      driver.leave_context();
    }).join();
  }
  memory::HostPool& host() { return parts.memory.swap().host(); }
  std::uint64_t host_bytes() { return rotad.usage().host_bytes.load(); }
  static constexpr std::uint64_t kSpare = 8 << 20;
};

}  // namespace

TEST_CASE(
    "of what others need of the host's memory, prepared pages go back at once, and pinned ones once no work runs") {
  Sparing program;
  for (int step = 0; step < 2; ++step) REQUIRE(program.host().prepare(16 << 20));
  REQUIRE(program.host().cached_bytes() == 24 << 20);
  CHECK(eventually([&] { return program.rotad.usage().host_spare_bytes.load() == 24 << 20; }));
  SECTION("while nobody waits for the GPU") {}
  SECTION("while others wait for the GPU") {
    program.rotad.somebody_waits(1);
  }
  program.rotad.share_host(0, 0);
  CHECK(eventually([&] { return program.host_bytes() == Sparing::kSpare; }));
  // The gate closes for a moment again and again, in which a thread that launches waits, and no longer.
  const int before = program.driver.marks.load();
  CHECK(eventually([&] { return program.driver.marks.load() >= before + 4; }));
  program.launch();
  CHECK(unpinned.load() == 0);
  CHECK(program.host_bytes() == Sparing::kSpare);
  program.finish();
  CHECK(eventually([&] { return program.host_bytes() == 0; }));
  CHECK(unpinned.load() == 1);
  CHECK(beside_work.load() == 0);
  CHECK(program.rotad.next().kind == Kind::kUsage);  // others wait for it
}

TEST_CASE("a program whose calls run for long gives back as well: its gate closes for longer and longer") {
  Sparing program;
  std::atomic<bool> ends{false};
  std::thread gpu([&] {  // which ends a call where the gate stays closed for 100 ms, and none while it is open
    while (!ends) {
      const auto begun = std::chrono::steady_clock::now();
      while (!ends && program.parts.gate.closed() && std::chrono::steady_clock::now() - begun < 100ms) {
        std::this_thread::sleep_for(200us);
      }
      if (std::chrono::steady_clock::now() - begun < 100ms) continue;
      if (program.driver.finished < program.driver.submitted) ++program.driver.finished;
    }
  });
  program.launch();
  program.rotad.share_host(0, 0);
  CHECK(eventually([&] { return unpinned.load() == 1; }));
  CHECK(beside_work.load() == 0);
  ends = true;
  gpu.join();
  program.finish();
}

TEST_CASE("a program whose turn was revoked gives back what others need of the host once its work is over") {
  Sparing program;
  program.rotad.somebody_waits(1, 1);
  CHECK(eventually([&] { return program.parts.gate.closed(); }));
  program.rotad.grant(0, 0);
  program.rotad.somebody_waits(0);
  program.rotad.share_host(0, 0);
  program.finish();
  CHECK(eventually([&] { return unpinned.load() == 1; }));
  CHECK(beside_work.load() == 0);
}

namespace {

// The longest that the gate was closed in four seconds.
std::chrono::nanoseconds longest_closed() {
  Sparing program;
  program.finish();
  test::LongCall copy(program.driver);
  program.rotad.share_host(0, 0);
  CHECK(eventually([&] { return program.parts.gate.metered(); }));
  auto longest = 0ns;
  for (const auto begun = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - begun < 4s;) {
    CHECK(eventually([&] { return program.parts.gate.closed(); }));
    const auto from = std::chrono::steady_clock::now();
    CHECK(eventually([&] { return !program.parts.gate.closed(); }));
    longest = std::max<std::chrono::nanoseconds>(longest, std::chrono::steady_clock::now() - from);
  }
  CHECK(unpinned.load() == 0);
  copy.end();
  CHECK(eventually([&] { return unpinned.load() == 1; }));
  return longest;
}

}  // namespace

TEST_CASE("while a thread is in a call that takes long, the gate closes for no longer than a few milliseconds") {
  // Otherwise each program's longest is half a second; on a busy machine now and then one's is.
  auto longest = longest_closed();
  for (int again = 0; again < 3 && longest >= 400ms; ++again) longest = longest_closed();
  CHECK(longest < 400ms);
}

TEST_CASE("work is metered while others need what only an idle program can give back, and no longer") {
  Sparing program;
  CHECK_FALSE(program.parts.gate.metered());
  static test::FakeRotad* lifts;
  lifts = nullptr;
  program.rotad.share_host(0, 0);
  CHECK(eventually([&] { return program.parts.gate.metered(); }));
  SECTION("until it has been given back") {}
  SECTION("until there is no limit any more, as of just then") {
    lifts = &program.rotad;
  }
  when_unpinned = [] {
    if (lifts != nullptr) lifts->lift_host_limit();
  };
  program.finish();
  CHECK(eventually([&] { return unpinned.load() == 1; }));
  CHECK(eventually([&] { return !program.parts.gate.metered(); }));
}
