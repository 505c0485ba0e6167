// What keeps memory on the GPU by the monitor's own decision: moves that fail, libraries that are about to be loaded,
// and the end of the process.
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>

#include "tests/unit/runtime/monitor/swapping_program.h"
#include "tests/unit/runtime/sleeping_thread.h"

using namespace rota;
using namespace rota::test;

namespace {

// Called when a context is made current, as the monitor does before it calls the driver for one. Null: nothing is.
std::atomic<const std::function<void()>*> when_entered;

void tells_when_entered(FakeDriver& driver) {
  maps(driver);
  static api::cuCtxPushCurrent_v2_fn* real_one = nullptr;
  real_one = reinterpret_cast<api::cuCtxPushCurrent_v2_fn*>(
      real::table[static_cast<std::size_t>(Symbol::k_cuCtxPushCurrent_v2)]);
  when_entered = nullptr;
  driver.set<api::cuCtxPushCurrent_v2_fn>(Symbol::k_cuCtxPushCurrent_v2, [](api::CUcontext context) {
    if (const std::function<void()>* const call = when_entered.load(); call != nullptr) (*call)();
    return real_one(context);
  });
}

// A thread of a program that is about to load a library.
struct Loading {
  explicit Loading(monitor::Monitor& monitor)
      : thread([this, &monitor] {
          number = gettid();
          monitor.bring_back_for("libnvcuvid.so.1");
          loads = true;
        }) {}
  // Returns once the thread sleeps or has ended: whether it waits.
  bool waits() {
    CHECK(eventually([this] { return number != 0 && sleeps_or_is_gone(number); }));
    return !loads;
  }
  std::atomic<pid_t> number{0};
  std::atomic<bool> loads{false};
  std::thread thread;
};

// An idle program. Its driver refuses copies to the host, and counts them.
struct Counting {
  Counting() : program(rotad, tells_when_entered) {
    program.rest();
    REQUIRE(eventually([&] { return program.fixed() == 0; }));
    copies = 0;
    program.driver.set<api::cuMemcpyDtoHAsync_v2_fn>(Symbol::k_cuMemcpyDtoHAsync_v2, [](auto...) {
      ++copies;
      return api::CUDA_ERROR_UNKNOWN;
    });
  }
  static inline std::atomic<int> copies;
  Speaking rotad;
  Holding program;
};

}  // namespace

TEST_CASE("memory that is restored for a process that exits stays, and the last calls of its handlers wait for that") {
  Speaking rotad;
  Program program(memory::Choice::kSwap, true, maps);
  memory::SwapBackend& swap = program.memory.swap();
  api::CUdeviceptr address = 0;
  REQUIRE(swap.serves(0));
  REQUIRE(swap.allocate({program.context, 0}, &address, kBytes) == api::CUDA_SUCCESS);  // without a turn
  REQUIRE(swap.out_bytes(0) == kBytes);
  REQUIRE_FALSE(swap.pinned());
  program.monitor.at_exit();
  program.launch();
  rotad.wait_for(Kind::kWant);
  CHECK(eventually([&] { return program.gate.standing() == 1; }));
  CHECK(program.driver.launches.load() == 0);
  rotad.grant(1, 1, 1024 * kMega);
  program.launcher.join();
  CHECK(program.driver.launches.load() == 1);
  CHECK(swap.resident_bytes(0) == kBytes);
  CHECK(eventually([&] { return rotad.usage().gpus[0].fixed_for_now_bytes.load() == kBytes; }));
  CHECK(rotad.usage().gpus[0].fixed_bytes.load() == kBytes);
  CHECK(eventually([&] { return !program.gate.closed(); }));
}

TEST_CASE("memory of a process that exits is evicted while a handler waits for its turn, and not while none does") {
  Counting with;
  auto& [rotad, program] = with;
  program.add_memory();  // without a turn
  program.monitor.at_exit();
  CHECK_FALSE(program.memory.swap().pinned());
  rotad.ask_for(kBytes);
  CHECK(eventually([&] { return program.fixed_for_now() == kBytes; }));
  CHECK(with.copies.load() == 0);
  program.launch();
  CHECK(eventually([&] { return with.copies.load() != 0; }));
  rotad.ask_for(0);
  rotad.wait_for(Kind::kWant);
  rotad.grant(2, 1, 1024 * kMega);
  program.launcher.join();
  CHECK(program.memory.swap().resident_bytes(0) == 2 * kBytes);
  CHECK(eventually([&] { return program.fixed_for_now() == 2 * kBytes; }));
}

TEST_CASE("a process that exits where a thread stays inside of an allocation does not wait for that thread") {
  Counting with;
  auto& [rotad, program] = with;
  std::atomic<bool> inside{false};
  std::atomic<bool> leaves{false};
  std::thread allocates([&] {  // as if a signal handler had called exit() there
    program.memory.swap().if_in_place(memory::kAllDevices, [&] {
      inside = true;
      eventually([&] { return leaves.load(); });
    });
  });
  REQUIRE(eventually([&] { return inside.load(); }));
  const auto begun = std::chrono::steady_clock::now();
  program.monitor.at_exit();
  CHECK(std::chrono::steady_clock::now() - begun <
        std::chrono::milliseconds(900));  // less than the second that it would wait
  CHECK(program.gate.closed());
  leaves = true;
  allocates.join();
  CHECK(eventually([&] { return !program.gate.closed(); }));
}

TEST_CASE("handlers of a process that exits wait for no memory that was freed while it was out of place") {
  Speaking rotad;
  Program program(memory::Choice::kSwap, true, maps);
  api::CUdeviceptr address = 0;
  REQUIRE(program.memory.swap().serves(0));
  REQUIRE(program.memory.swap().allocate({program.context, 0}, &address, kBytes) == api::CUDA_SUCCESS);
  program.memory.swap().free(address);
  CHECK(program.memory.swap().all_in_place());
  CHECK(gate::out_of_place.load());
  program.monitor.at_exit();
  CHECK(eventually([&] { return !program.gate.closed(); }));
  CHECK_FALSE(gate::out_of_place.load());
}

TEST_CASE("a process that exits while its memory is about to be evicted waits for the monitor, and its memory stays") {
  Counting with;
  auto& [rotad, program] = with;
  std::atomic<pid_t> number{0};
  std::atomic<bool> exited{false};
  std::atomic<bool> about{false};
  bool closed = false;
  bool waited = false;
  const std::function<void()> call = [&] {  // by the monitor
    if (!gate::out_of_place.load() || about.exchange(true)) return;
    CHECK(eventually([&] { return number != 0 && sleeps_or_is_gone(number); }));
    closed = program.gate.closed();
    waited = !exited;
  };
  when_entered = &call;
  rotad.ask_for(kBytes);
  REQUIRE(eventually([&] { return about.load(); }));
  std::thread exits([&] {
    number = gettid();
    program.monitor.at_exit();
    exited = true;
  });
  exits.join();
  CHECK(closed);
  CHECK(waited);
  CHECK(eventually([&] { return !program.gate.closed(); }));  // for good: nobody has given it a turn
  CHECK(with.copies.load() == 0);
  CHECK(program.memory.swap().resident_bytes(0) == kBytes);
}

TEST_CASE("memory that is to stay in place for a while is not evicted before that is over") {
  std::function<void()> call;  // by another thread
  Counting with;
  auto& [rotad, program] = with;
  const auto keep = [&] { program.monitor.keep_in_place(std::chrono::seconds(2)); };
  SECTION("said before the move") {
    keep();
  }
  SECTION("while the gate closes for it") {
    call = [&] {
      when_entered = nullptr;
      keep();
    };
    when_entered = &call;
  }
  rotad.ask_for(kBytes);
  CHECK(eventually([&] { return program.fixed_for_now() == kBytes && !gate::out_of_place.load(); }));
  CHECK(with.copies.load() == 0);
  CHECK(eventually([&] { return with.copies.load() != 0; }));
}

TEST_CASE("a thread that waits for memory before it loads a library waits to the end although it is cancelled") {
  Counting with;
  static monitor::Monitor* monitor;
  static std::atomic<bool> cancelled;
  static std::atomic<bool> goes_on;
  static std::atomic<pid_t> number;
  monitor = &with.program.monitor;
  cancelled = goes_on = false;
  number = 0;
  gate::out_of_place.store(true);
  pthread_t thread{};
  REQUIRE(pthread_create(
              &thread, nullptr,
              [](void*) -> void* {
                number = gettid();
                while (!cancelled) sched_yield();
                []() noexcept { monitor->bring_back_for("libnvcuvid.so.1"); }();  // as a program's dlopen does
                goes_on = true;
                pthread_testcancel();
                return nullptr;
              },
              nullptr) == 0);
  REQUIRE(eventually([] { return number != 0; }));
  pthread_cancel(thread);
  cancelled = true;
  CHECK(eventually([] { return sleeps_or_is_gone(number); }));
  gate::out_of_place.store(false);
  void* result = nullptr;
  pthread_join(thread, &result);
  CHECK(goes_on.load());
  CHECK(result == PTHREAD_CANCELED);
}

TEST_CASE("each thread that is about to load a library waits for memory, also for one that has been loaded before") {
  Counting with;
  monitor::Monitor& monitor = with.program.monitor;
  const bool before = GENERATE(false, true);
  if (before) monitor.bring_back_for("libnvcuvid.so.1");
  gate::out_of_place.store(true);
  Loading one(monitor);
  Loading other(monitor);
  CHECK(one.waits());
  CHECK(other.waits());
  gate::out_of_place.store(false);
  for (Loading* each : {&one, &other}) {
    each->thread.join();
    CHECK(each->loads.load());
  }
}

TEST_CASE("memory stays in place for as long as a library takes to load, however long the thread has waited for it") {
  Counting with;
  auto& [rotad, program] = with;
  gate::out_of_place.store(true);
  const auto begun = std::chrono::steady_clock::now();
  Loading loading(program.monitor);
  // Longer than it stays pinned.
  REQUIRE(eventually([&] { return std::chrono::steady_clock::now() - begun > std::chrono::milliseconds(5500); }));
  CHECK(loading.waits());
  gate::out_of_place.store(false);
  loading.thread.join();
  rotad.ask_for(kBytes);
  CHECK(eventually([&] { return program.fixed_for_now() == kBytes && !gate::out_of_place.load(); }));
  CHECK(with.copies.load() == 0);
}

TEST_CASE("a program that looks for a library again and again does not keep its memory in place") {
  Counting with;
  auto& [rotad, program] = with;
  program.monitor.bring_back_for("libnvcuvid.so.1");
  program.monitor.bring_back_for("libnvcuvid.so.1");
  const auto begun = std::chrono::steady_clock::now();
  rotad.ask_for(kBytes);
  CHECK(eventually([&] { return with.copies.load() != 0; }));
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(4));  // the first time it would be five
}

TEST_CASE("rotad is told at once when a move is over, however little was evicted") {
  Speaking rotad;
  Holding program(rotad, [](FakeDriver& driver) {
    driver.device_bytes = 128 * kBytes;  // less than a 64th of it leaves
    tells_when_entered(driver);
    driver.set<api::cuMemcpyDtoHAsync_v2_fn>(Symbol::k_cuMemcpyDtoHAsync_v2, [](auto...) { return api::CUDA_SUCCESS; });
  });
  program.rest();
  REQUIRE(eventually([&] { return program.fixed() == 0; }));
  rotad.ask_for(kBytes);
  rotad.wait_for(Kind::kUsage);
  CHECK(rotad.usage().gpus[0].resident_bytes.load() == 0);
}

TEST_CASE("memory that is pinned while the gate closes for a move stays") {
  std::function<void()> call;  // by another thread
  Counting with;
  auto& [rotad, program] = with;
  call = [&] { program.memory.swap().pin(protocol::PinAll::kReached); };
  when_entered = &call;
  rotad.ask_for(kBytes);
  CHECK(eventually([&] { return program.fixed() == kBytes && !gate::out_of_place.load(); }));
  CHECK(with.copies.load() == 0);
  CHECK(program.fixed_for_now() == 0);
}

TEST_CASE("memory that could not be copied may be asked for again after the program's next turn") {
  Speaking rotad;
  Holding program(rotad, maps);  // whose driver copies nothing
  program.rest();
  REQUIRE(eventually([&] { return program.fixed() == 0; }));
  rotad.ask_for(kBytes);
  REQUIRE(eventually([&] { return program.fixed_for_now() == kBytes; }));
  rotad.ask_for(0);
  program.next_turn();
  program.rest();
  CHECK(program.fixed_for_now() == 0);
}

TEST_CASE("memory of a turn that was revoked counts as pinned temporarily, until the work has ended") {
  Speaking rotad;
  Holding program(rotad, maps);
  program.driver.finished = 0;
  CHECK(program.fixed() == 0);
  rotad.grant(0, 0);
  CHECK(eventually([&] { return program.fixed_for_now() == kBytes; }));
  CHECK(program.fixed() == kBytes);
  program.driver.finished = UINT64_MAX;
  CHECK(eventually([&] { return program.fixed() == 0; }));
  CHECK(program.fixed_for_now() == 0);
}

TEST_CASE("memory that ends up out of place behind a gate closed for a moment is back before the gate opens") {
  // So many files make the monitor's scan of them take long, which it does while memory is out of place.
  std::vector<int> files;
  for (int file = 0; file >= 0 && files.size() < 800;) {
    file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (file >= 0) files.push_back(file);
  }
  Speaking rotad;
  std::function<void()> call;  // by another thread
  Holding program(rotad, tells_when_entered);
  memory::SwapBackend& swap = program.memory.swap();
  static std::atomic<memory::SwapBackend*> looked_at;
  static std::atomic<int> launches_in_place;
  looked_at = &swap;
  launches_in_place = -1;
  program.driver.set<api::cuLaunchKernel_fn>(Symbol::k_cuLaunchKernel, [](auto...) {
    launches_in_place = looked_at.load()->all_in_place() ? 1 : 0;
    return api::CUDA_SUCCESS;
  });
  // The host is low, so the monitor closes the gate and gives back to it what nobody needs.
  std::atomic<bool> inside{false};
  std::atomic<bool> leave{false};
  call = [&] {
    if (!program.gate.closed() || inside.exchange(true)) return;
    eventually([&] { return leave.load(); });
  };
  when_entered = &call;
  static std::atomic<std::uint64_t> left;
  left = std::uint64_t{1} << 40;
  swap.host().set_left([] { return left.load(); });
  REQUIRE(swap.host().take(kMega) != nullptr);
  left = 0;
  REQUIRE(eventually([&] { return inside.load(); }));
  program.launch();
  CHECK(eventually([&] { return program.gate.standing() == 1; }));
  program.add_memory();
  CHECK(swap.out_bytes(0) == kBytes);
  leave = true;
  program.launcher.join();
  CHECK(launches_in_place.load() == 1);
  CHECK(swap.resident_bytes(0) == 2 * kBytes);
  for (const int file : files) close(file);
}

TEST_CASE("the gate stays closed when a process ends while its memory is evicted") {
  Speaking rotad;
  FakeDriver driver;
  maps(driver);
  gate::Gate gate;
  driver::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory(ledger, {.backend = memory::Choice::kSwap, .limit_bytes = UINT64_MAX});
  auto monitor = std::make_unique<monitor::Monitor>(gate, contexts, memory);
  const api::CUcontext context = driver.enter_context(0);
  monitor->context_made(context, 0, true);
  api::CUdeviceptr address = 0;
  REQUIRE(memory.swap().serves(0));
  REQUIRE(memory.swap().allocate({context, 0}, &address, kBytes) == api::CUDA_SUCCESS);
  REQUIRE(memory.swap().out_bytes(0) == kBytes);
  std::thread launcher([&] {
    driver.enter_context(0);
    gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    driver.leave_context();
  });
  rotad.wait_for(Kind::kWant);
  monitor.reset();
  CHECK(gate.closed());
  CHECK(driver.launches.load() == 0);
  gate::out_of_place.store(false);
  gate.open();
  launcher.join();
}

TEST_CASE("a call into a capture waits where memory has ended up out of place since the capture began") {
  const Speaking rotad;
  Program program(memory::Choice::kSwap, true, maps);
  const auto stream = reinterpret_cast<api::CUstream>(0x5000);
  const driver::Call call{Symbol::k_cuLaunchKernel, stream, true, false};
  const auto captures = [&](bool now) {
    return [&program, now] {
      program.driver.capturing = now;
      return api::CUDA_SUCCESS;
    };
  };
  REQUIRE(program.contexts.begin_capture(stream, false, captures(true)) == api::CUDA_SUCCESS);
  CHECK(program.monitor.submits_nothing(call));
  gate::out_of_place.store(true);
  CHECK_FALSE(program.monitor.submits_nothing(call));
  gate::out_of_place.store(false);
  REQUIRE(program.contexts.end_capture(stream, false, captures(false)) == api::CUDA_SUCCESS);
}
