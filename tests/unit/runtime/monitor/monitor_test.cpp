// A process as rotad sees it: when it requests a turn, when it gives it back, and what it does without rotad.
#include "runtime/monitor/monitor.h"
#include "runtime/client/spare_descriptors.h"
#include "runtime/memory/memory.h"

#include <dirent.h>
#include <signal.h>

#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <set>
#include <thread>

#include "generated/driver_gates.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_driver.h"
#include "tests/unit/runtime/monitor/fake_rotad.h"
#include "tests/unit/runtime/monitor/long_call.h"

using namespace rota;
using namespace std::chrono_literals;
using protocol::Kind;
using Clock = std::chrono::steady_clock;
using test::eventually;

namespace {

struct Program {
  Program() : memory(ledger, {.small_bytes = 0}), monitor(gate, contexts, memory) { context = driver.enter_context(0); }
  void make_context() { monitor.context_made(context, 0, true); }
  static void launch() { gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); }
  // A thread that launches once, with the context current.
  std::thread launcher() {
    return std::thread([this] {
      driver.enter_context(0);
      launch();
      driver.leave_context();
    });
  }

  test::FakeDriver driver;
  gate::Gate gate;
  driver::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory;
  monitor::Monitor monitor;
  api::CUcontext context = nullptr;
};

std::set<int> descriptors() {
  std::set<int> open;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') open.insert(std::atoi(entry->d_name));
  }
  open.erase(dirfd(folder));
  closedir(folder);
  return open;
}

}  // namespace

TEST_CASE("nvshare 8: without rotad the program runs as without rota") {
  setenv("ROTA_SOCKET", "/nonexistent/rota/sock", 1);
  Program program;
  Program::launch();  // no context was created through rota: the first call starts the client
  CHECK(program.driver.launches.load() == 1);
  CHECK_FALSE(program.monitor.served());
  CHECK_FALSE(program.gate.closed());
  unsetenv("ROTA_SOCKET");
}

TEST_CASE("a rotad that refuses this client does not keep it from running") {
  test::FakeRotad rotad(true);
  Program program;
  program.make_context();
  Program::launch();
  CHECK(program.driver.launches.load() == 1);
}

TEST_CASE("the first submitting call asks for the GPU and waits for its turn") {
  test::FakeRotad rotad;
  Program program;
  program.make_context();
  CHECK(program.monitor.served());
  CHECK(rotad.quiet());  // a context by itself needs no turn
  std::thread thread = program.launcher();
  const protocol::Message want = rotad.next();
  CHECK(want.kind == Kind::kWant);
  CHECK(want.body.want.gpus == 1);
  CHECK(program.driver.launches.load() == 0);
  rotad.grant(5);
  thread.join();
  CHECK(program.driver.launches.load() == 1);
}

TEST_CASE("nvshare 12: nothing is given back while nobody waits, and once somebody does, an idle GPU is, and drained") {
  test::FakeRotad rotad;
  Program program;
  program.make_context();
  std::thread thread = program.launcher();
  rotad.next();
  rotad.grant(5);
  thread.join();
  // The work is not finished: another client waits, and keeps waiting.
  rotad.somebody_waits(1);
  CHECK(eventually([&] { return program.driver.marks.load() > 0; }));
  CHECK(rotad.quiet());
  CHECK_FALSE(program.gate.closed());
  program.driver.finished = program.driver.submitted.load();
  const protocol::Message back = rotad.next();
  CHECK(back.kind == Kind::kGiveBack);
  CHECK(back.body.give_back.grant == 5);
  CHECK(program.gate.closed());
  // The page still shows the old grant: it is not a new one.
  std::thread again = program.launcher();
  CHECK(rotad.next().kind == Kind::kWant);
  CHECK(program.driver.launches.load() == 1);
  rotad.somebody_waits(0);
  rotad.grant(6);
  again.join();
  const int marks = program.driver.marks.load();
  Program::launch();
  CHECK(program.driver.marks.load() == marks);  // nobody waits: nothing is checked
}

TEST_CASE("at the end of the turn a busy program is stopped at the gate, drained, and then gives back") {
  test::FakeRotad rotad;
  Program program;
  program.make_context();
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    program.driver.enter_context(0);
    while (!stop.load()) Program::launch();
    program.driver.leave_context();
  });
  rotad.next();
  rotad.grant(1);
  REQUIRE(eventually([&] { return program.driver.launches.load() > 10; }));
  rotad.somebody_waits(1, 1);  // the turn is already over
  REQUIRE(eventually([&] { return program.gate.standing() == 1; }));
  CHECK(rotad.quiet());  // closed, but the GPU is still working
  const std::uint64_t submitted = program.driver.submitted.load();
  program.driver.finished = submitted;
  CHECK(rotad.next().kind == Kind::kGiveBack);
  CHECK(program.driver.submitted.load() == submitted);
  CHECK(rotad.next().kind == Kind::kWant);  // and requests its next turn at once
  stop.store(true);
  program.driver.finished = UINT64_MAX;
  rotad.somebody_waits(0);
  rotad.grant(2);
  thread.join();
}

TEST_CASE("a drain that waits for what the closed gate holds back is given up: the gate opens again") {
  test::FakeRotad rotad;
  Program program;
  program.make_context();
  std::thread first = program.launcher();
  rotad.next();
  rotad.grant(1);
  first.join();
  rotad.somebody_waits(1, 1);
  REQUIRE(eventually([&] { return program.gate.closed(); }));
  // The GPU does not finish before this launch arrives.
  std::thread second = program.launcher();
  second.join();
  CHECK(program.driver.launches.load() == 2);
  CHECK(rotad.quiet());
  program.driver.finished = program.driver.submitted.load();
  CHECK(rotad.next().kind == Kind::kGiveBack);
}

TEST_CASE("rotad dies: programs that hold the GPU run on at once, those that wait after a while") {
  test::FakeRotad rotad;
  Program program;
  program.make_context();
  SECTION("holder") {
    std::thread thread = program.launcher();
    rotad.next();
    rotad.grant(1);
    thread.join();
    rotad.die();
    Program::launch();
    CHECK(program.driver.launches.load() == 2);
  }
  SECTION("waiter") {
    std::thread thread = program.launcher();
    rotad.next();
    rotad.die();
    thread.join();
    CHECK(program.driver.launches.load() == 1);
  }
}

TEST_CASE("a lease that rotad took back stops the program at the gate, and it asks again") {
  test::FakeRotad rotad;
  Program program;
  program.make_context();
  std::thread first = program.launcher();
  rotad.next();
  rotad.grant(1);
  first.join();
  rotad.grant(0, 0);
  REQUIRE(eventually([&] { return program.gate.closed(); }));
  std::thread second = program.launcher();
  CHECK(rotad.next().kind == Kind::kWant);
  rotad.grant(2);
  second.join();
}

TEST_CASE("threads that allocate and free at once leave the true sum in the usage page") {
  test::FakeRotad rotad;
  Program program;
  program.make_context();
  std::thread first = program.launcher();
  rotad.next();
  rotad.grant(5);
  first.join();
  std::atomic<int> wrong{0};
  constexpr int kRounds = 20000;
  std::barrier both(2);
  const auto thread = [&](std::uint64_t bytes, bool looks) {
    for (int round = 0; round < kRounds; ++round) {
      both.arrive_and_wait();
      if (round % 2 == 0 && !program.ledger.reserve(0, bytes, memory::Kind::kPlain)) std::abort();
      if (round % 2 == 0) program.ledger.settle(0, bytes, memory::Kind::kPlain);
      if (round % 2 == 1) program.ledger.release(0, bytes, memory::Kind::kPlain);
      program.memory.changed(0);
      both.arrive_and_wait();
      if (looks && rotad.usage().gpus[0].device_bytes.load() != program.ledger.live_bytes(0)) wrong.fetch_add(1);
    }
  };
  std::thread one(thread, 1, false);
  thread(2, true);
  one.join();
  CHECK(wrong.load() == 0);
}

TEST_CASE("usage is in the page at once, and told when it has changed by a 64th of the GPU") {
  test::FakeRotad rotad;
  Program program;
  program.driver.device_bytes = 64 << 20;
  program.make_context();
  std::thread thread = program.launcher();
  rotad.next();
  rotad.grant(1);
  thread.join();
  api::CUdeviceptr address = 0;
  REQUIRE(program.memory.allocate(&address, 4096) == api::CUDA_SUCCESS);
  CHECK(rotad.usage().gpus[0].device_bytes.load() == 4096);
  CHECK(rotad.quiet());
  REQUIRE(program.memory.allocate(&address, 1 << 20) == api::CUDA_SUCCESS);
  CHECK(rotad.next().kind == Kind::kUsage);
  CHECK(rotad.usage().gpus[0].device_bytes.load() == 4096 + (1 << 20));
  CHECK(rotad.usage().gpus[0].fixed_bytes.load() == 0);
  CHECK(rotad.usage().gpus[0].memory_mode.load() == static_cast<std::uint8_t>(protocol::MemoryMode::kUnified));
}

TEST_CASE("rotad is told how a GPU's memory is served before any is taken, and once that has changed") {
  test::FakeRotad rotad;
  Program program;
  program.make_context();
  std::thread thread = program.launcher();
  rotad.next();
  rotad.grant(1);
  thread.join();
  const auto told = [&] { return static_cast<protocol::MemoryMode>(rotad.usage().gpus[0].memory_mode.load()); };
  CHECK(told() == protocol::MemoryMode::kUnified);
  api::CUdeviceptr address = 0;
  REQUIRE(program.memory.allocate(&address, 1 << 20) == api::CUDA_SUCCESS);
  program.memory.explained(api::CUDA_ERROR_INVALID_VALUE, address, "cuIpcGetMemHandle");
  CHECK(told() == protocol::MemoryMode::kNativeRefused);
}

TEST_CASE("nvshare 9: no descriptor of the client survives an exec, and the pages are not kept open") {
  test::FakeRotad rotad;
  const std::set<int> before = descriptors();
  Program program;
  program.make_context();
  int own = 0;
  for (const int descriptor : descriptors()) {
    if (before.count(descriptor) != 0) continue;
    ++own;
    CHECK((fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0);
  }
  // Our end of the socket and, in the same process, the fake rotad's; and those in reserve for the next connection.
  CHECK(own == 2 + static_cast<int>(client::SpareDescriptors::kMost) - 1);
}

TEST_CASE("the monitor takes none of the program's signals") {
  test::FakeRotad rotad;
  Program program;
  program.make_context();
  int seen = 0;
  DIR* folder = opendir("/proc/self/task");
  while (const dirent* entry = readdir(folder)) {
    const std::string base = std::string("/proc/self/task/") + entry->d_name;
    FILE* name = fopen((base + "/comm").c_str(), "r");
    if (name == nullptr) continue;
    char text[256] = {};
    if (fgets(text, sizeof text, name) != nullptr && std::strcmp(text, "rota\n") == 0) {
      FILE* status = fopen((base + "/status").c_str(), "r");
      while (fgets(text, sizeof text, status) != nullptr) {
        if (std::strncmp(text, "SigBlk:", 7) != 0) continue;
        ++seen;
        // All but SIGKILL, SIGSTOP and glibc's own two (32, 33).
        CHECK((~std::strtoull(text + 7, nullptr, 16) & ~0x1'8004'0100ull) == 0);
      }
      fclose(status);
    }
    fclose(name);
  }
  closedir(folder);
  CHECK(seen == 1);
}

TEST_CASE("a rotad that welcomes and hangs up, again and again, does not stop the program for good") {
  test::FakeRotad rotad;
  rotad.hang_up_on_wants();
  Program program;
  program.make_context();
  std::thread thread = program.launcher();
  // The grace period of ten seconds runs from the first loss; later losses do not restart it.
  const bool launched = eventually([&] { return program.driver.launches.load() == 1; }, 18s);
  CHECK(launched);
  CHECK(rotad.clients() >= 2);
  if (!launched) rotad.die();
  thread.join();
}

TEST_CASE("a GPU whose size the driver does not tell, or tells wrong, runs without turns") {
  test::FakeRotad rotad;
  Program program;
  SECTION("none") {
    program.driver.device_bytes = 0;
  }
  SECTION("more than there can be") {
    program.driver.device_bytes = (std::uint64_t{1} << 48) + 1;
  }
  SECTION("an error") {
    program.driver.set<api::cuDeviceTotalMem_v2_fn>(
        Symbol::k_cuDeviceTotalMem_v2, [](std::size_t*, api::CUdevice) { return api::CUDA_ERROR_INVALID_DEVICE; });
  }
  program.make_context();
  std::thread thread = program.launcher();
  const bool launched = eventually([&] { return program.driver.launches.load() == 1; }, 5s);
  CHECK(launched);
  CHECK(rotad.quiet());
  if (!launched) rotad.die();
  thread.join();
}

TEST_CASE("a gated call before the first context gets the driver's error and does not wait for a turn") {
  test::FakeRotad rotad;
  Program program;
  program.driver.leave_context();
  program.driver.launch_result = api::CUDA_ERROR_INVALID_CONTEXT;
  const auto stream = reinterpret_cast<api::CUstream>(0x500);
  std::atomic<int> result{-1};
  std::thread thread([&] { result = gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr); });
  const bool answered = eventually([&] { return result.load() == api::CUDA_ERROR_INVALID_CONTEXT; }, 5s);
  CHECK(answered);
  if (!answered) rotad.die();
  thread.join();
  program.driver.enter_context(0);
}

TEST_CASE("a GPU that makes progress is drained, however long a thread is inside and another waits at the gate") {
  test::FakeRotad rotad;
  Program program;
  program.make_context();
  std::thread first = program.launcher();
  rotad.next();
  rotad.grant(1);
  first.join();
  rotad.somebody_waits(1);
  // A long queue, filled while another client waits.
  for (int i = 0; i < 30; ++i) {
    Program::launch();
    const int marks = program.driver.marks.load();
    eventually([&] { return program.driver.marks.load() > marks; });
  }
  // A thread inside, as in a synchronous copy behind the queue; and one that launches endlessly.
  test::LongCall copy(program.driver);
  rotad.somebody_waits(1, 1);
  REQUIRE(eventually([&] { return program.gate.closed(); }));
  const int before = program.driver.launches.load();
  std::thread second = program.launcher();
  REQUIRE(eventually([&] { return program.gate.standing() == 1; }));
  // 2.4 s in total, and never more than 80 ms without progress.
  for (std::uint64_t done = 1; done <= 30; ++done) {
    program.driver.finished = done;
    std::this_thread::sleep_for(80ms);
  }
  CHECK(program.driver.launches.load() == before);
  CHECK(program.gate.closed());
  copy.end();
  program.driver.finished = program.driver.submitted.load();
  CHECK(rotad.next().kind == Kind::kGiveBack);
  CHECK(program.driver.launches.load() == before);
  CHECK(rotad.next().kind == Kind::kWant);
  rotad.somebody_waits(0);  // or the next turn could be over before the thread wakes
  rotad.grant(2);
  second.join();
}
