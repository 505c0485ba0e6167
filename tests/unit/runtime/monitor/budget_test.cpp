// Limits that processes share, as a process keeps them: what it asks for, when it asks for nothing, and what ends the
// wait.
#include "runtime/client/budget.h"

#include <pthread.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "generated/driver_real.h"
#include "runtime/memory/memory.h"
#include "runtime/monitor/monitor.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_driver.h"
#include "tests/unit/runtime/monitor/fake_rotad.h"

using namespace rota;
using namespace std::chrono_literals;
using protocol::Kind;

namespace {

constexpr std::uint64_t kMega = 1 << 20;

struct Rotad : test::FakeRotad {
  Rotad() { keep_limits(); }
  // The next message of this kind; others are skipped.
  protocol::Message next(Kind kind) {
    for (;;) {
      const protocol::Message message = FakeRotad::next();
      if (message.kind == kind) return message;
    }
  }
  protocol::Reserve next_ask() { return next(Kind::kReserve).body.reserve; }
  protocol::State next_state() { return next(Kind::kState).body.state; }
  void answer(const protocol::Reserve& ask, bool granted, std::uint64_t bytes,
              std::uint64_t fixed = protocol::kUnlimited) {
    protocol::Message message{.kind = Kind::kReserved};
    message.body.reserved = {.gpu = ask.gpu,
                             .number = ask.number,
                             .device_bytes = bytes,
                             .movable_bytes = bytes,
                             .granted = granted ? 1U : 0U,
                             .text = {},
                             .full = 0,
                             .fixed_bytes = fixed,
                             .swapped_bytes = protocol::kUnlimited};
    say(message);
  }
  void tighten(std::uint32_t round) {
    protocol::Message message{.kind = Kind::kTighten};
    message.body.tighten = {round};
    say(message);
  }
};

struct Program {
  explicit Program(std::size_t gpu_bytes = 1024 * kMega, std::uint64_t limit = UINT64_MAX)
      : memory(ledger, {.backend = memory::Choice::kManaged, .limit_bytes = limit}) {
    driver.device_bytes = gpu_bytes;
    context = driver.enter_context(0);
    monitor.context_made(context, 0, true);
  }
  ~Program() {
    monitor.at_exit();
    for (std::thread& thread : threads) thread.join();
  }
  void start_allocating(std::uint64_t bytes, std::atomic<int>* result) {
    threads.emplace_back([this, bytes, result] {
      driver.enter_context(0);
      api::CUdeviceptr address = 0;
      *result = memory.allocate(&address, bytes);
      driver.leave_context();
    });
  }
  api::CUresult allocate(std::uint64_t bytes, api::CUdeviceptr* address = nullptr) {
    api::CUdeviceptr unused = 0;
    return memory.allocate(address != nullptr ? address : &unused, bytes);
  }

  test::FakeDriver driver;
  gate::Gate gate;
  driver::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory;
  monitor::Monitor monitor{gate, contexts, memory};
  api::CUcontext context = nullptr;
  std::vector<std::thread> threads;
};

bool becomes(const std::atomic<int>& result, int value) {
  return test::eventually([&] { return result == value; });
}

constexpr int kPending = -1;

}  // namespace

TEST_CASE("an allocation asks before it is made, and what was granted beyond it needs no ask") {
  Rotad rotad;
  std::atomic<int> result{kPending};
  Program program;
  CHECK(rotad.next_state().device_bytes == 0);
  program.start_allocating(5 * kMega, &result);
  const protocol::Reserve ask = rotad.next_ask();
  CHECK(ask.device_bytes == 5 * kMega);
  CHECK(ask.movable_bytes == 5 * kMega);
  CHECK(program.driver.managed_allocations.load() == 0);
  rotad.answer(ask, true, 8 * kMega);
  REQUIRE(becomes(result, api::CUDA_SUCCESS));
  CHECK(program.allocate(3 * kMega) == api::CUDA_SUCCESS);
  CHECK(rotad.quiet());
}

TEST_CASE("what a limit forbids is allowed after all where a stream has passed as much since it was freed") {
  Rotad rotad;
  std::atomic<int> first{kPending};
  std::atomic<int> freed{kPending};
  std::atomic<int> second{kPending};
  Program program;
  program.start_allocating(kMega - 1024, &first);
  rotad.answer(rotad.next_ask(), true, 3 * kMega / 2);
  REQUIRE(becomes(first, api::CUDA_SUCCESS));
  const std::uint64_t address = program.ledger.list(0, memory::Kind::kShared).at(0).address;
  program.driver.submitted = 1;
  program.threads.emplace_back([&] {
    real::cuCtxPushCurrent_v2(program.context);
    const auto refused = [] { return api::CUDA_ERROR_UNKNOWN; };
    freed = program.memory.free_async(address, nullptr, false, refused);
    program.driver.leave_context();
  });
  rotad.next(Kind::kWant);  // work behind that of the stream needs a turn
  rotad.grant(1, 1, 100 * kMega);
  REQUIRE(becomes(freed, api::CUDA_SUCCESS));
  CHECK(program.ledger.live_bytes(0) == kMega - 1024);
  program.start_allocating(kMega, &second);
  const protocol::Reserve asked = rotad.next_ask();
  program.driver.finished = 1;  // not before, or the monitor might see it first
  rotad.answer(asked, false, 3 * kMega / 2);
  REQUIRE(becomes(second, api::CUDA_SUCCESS));
  CHECK(program.ledger.live_bytes(0) == kMega);
}

TEST_CASE("what a limit forbids is out of memory, leaves nothing in the accounting, and the program can go on") {
  Rotad rotad;
  std::atomic<int> result{kPending};
  Program program;
  program.start_allocating(10 * kMega, &result);
  rotad.answer(rotad.next_ask(), false, 4 * kMega);
  REQUIRE(becomes(result, api::CUDA_ERROR_OUT_OF_MEMORY));
  CHECK(program.ledger.live_bytes(0) == 0);
  CHECK(program.allocate(4 * kMega) == api::CUDA_SUCCESS);
}

TEST_CASE("of two threads the one that does not fit is no hindrance to the other") {
  Rotad rotad;
  std::atomic<int> large{kPending};
  std::atomic<int> small{kPending};
  Program program;
  program.start_allocating(100 * kMega, &large);
  const protocol::Reserve first = rotad.next_ask();
  program.start_allocating(kMega, &small);
  // The second may or may not be in the ledger yet; either way it is asked for separately.
  rotad.answer(first, false, 0);
  for (;;) {
    const protocol::Reserve next = rotad.next_ask();
    rotad.answer(next, next.device_bytes <= 2 * kMega, next.device_bytes <= 2 * kMega ? 2 * kMega : 0);
    if (next.device_bytes <= 2 * kMega) {
      CHECK(next.device_bytes == kMega);
      break;
    }
  }
  CHECK(becomes(large, api::CUDA_ERROR_OUT_OF_MEMORY));
  CHECK(becomes(small, api::CUDA_SUCCESS));
}

TEST_CASE("what is freed is given back when rotad asks for it, and asked for again when it is needed") {
  Rotad rotad;
  std::atomic<int> result{kPending};
  Program program;
  rotad.next_state();
  program.start_allocating(40 * kMega, &result);
  const protocol::Reserve ask = rotad.next_ask();
  rotad.answer(ask, true, 48 * kMega);
  REQUIRE(becomes(result, api::CUDA_SUCCESS));
  rotad.tighten(7);
  const protocol::State state = rotad.next_state();
  CHECK(state.device_bytes == 40 * kMega);
  CHECK(state.movable_bytes == 40 * kMega);
  CHECK(state.answered == ask.number);
  CHECK(state.round == 7);
  program.start_allocating(kMega, &result);
  CHECK(rotad.next_ask().device_bytes == 41 * kMega);
}

TEST_CASE("a thread that waits for an answer does not count as having what it asks for") {
  Rotad rotad;
  std::atomic<int> result{kPending};
  Program program;
  rotad.next_state();
  program.start_allocating(40 * kMega, &result);
  rotad.next_ask();
  rotad.tighten(1);
  CHECK(rotad.next_state().device_bytes == 0);
}

TEST_CASE("memory that stays on the GPU is not said to be evictable") {
  Rotad rotad;
  std::atomic<int> result{kPending};
  Program program;
  program.threads.emplace_back([&] {
    program.driver.enter_context(0);
    result = program.memory.allocate_native(
        kMega, memory::Kind::kArray, [] { return api::CUDA_SUCCESS; }, [] { return memory::kHandleBit | 1; });
    program.driver.leave_context();
  });
  const protocol::Reserve ask = rotad.next_ask();
  CHECK(ask.device_bytes == kMega);
  CHECK(ask.movable_bytes == 0);
  rotad.answer(ask, true, kMega);
  CHECK(becomes(result, api::CUDA_SUCCESS));
}

TEST_CASE("a GPU that rotad does not serve has no limits") {
  Rotad rotad;
  rotad.refuse_gpus(1);
  Program program;
  CHECK(program.allocate(kMega) == api::CUDA_SUCCESS);
}

TEST_CASE("a GPU whose size cannot be used has no limits, since rotad is not asked for it") {
  const Rotad rotad;
  Program program(std::size_t{300} << 40);
  CHECK(program.allocate(kMega) == api::CUDA_SUCCESS);
}

TEST_CASE("what another thread only asks for, and is refused, does not have this one refused") {
  Rotad rotad;
  std::atomic<int> large{kPending};
  std::atomic<int> small{kPending};
  Program program(1024 * kMega, 100 * kMega);  // ROTA_GPU_MEM_LIMIT, as `rota run --gpu-mem` sets it
  program.start_allocating(90 * kMega, &large);
  const protocol::Reserve first = rotad.next_ask();
  program.start_allocating(20 * kMega, &small);  // does not fit in addition to the first
  rotad.answer(first, false, 0);
  CHECK(becomes(large, api::CUDA_ERROR_OUT_OF_MEMORY));
  const protocol::Reserve second = rotad.next_ask();
  CHECK(second.device_bytes == 20 * kMega);
  rotad.answer(second, true, 20 * kMega);
  CHECK(becomes(small, api::CUDA_SUCCESS));
}

TEST_CASE("the first question about memory is answered with the limit") {
  Rotad rotad;
  rotad.limit(300 * kMega, 300 * kMega);
  Program program;
  std::size_t free = 0;
  std::size_t total = 0;
  REQUIRE(program.memory.info(&free, &total) == api::CUDA_SUCCESS);
  CHECK(total == 300 * kMega);
}

TEST_CASE("a rotad that goes while a thread waits for its answer lets it go on") {
  Rotad rotad;
  std::atomic<int> result{kPending};
  Program program;
  program.start_allocating(kMega, &result);
  rotad.next_ask();
  rotad.die();
  CHECK(becomes(result, api::CUDA_SUCCESS));
}

TEST_CASE("a thread that is cancelled while it waits for an answer leaves nothing behind") {
  Rotad rotad;
  std::atomic<int> other{kPending};
  Program program;
  pthread_t thread{};
  REQUIRE(pthread_create(
              &thread, nullptr,
              [](void* of) -> void* {
                auto& mine = *static_cast<Program*>(of);
                mine.driver.enter_context(0);
                mine.allocate(kMega);
                return nullptr;
              },
              &program) == 0);
  rotad.next_ask();
  pthread_cancel(thread);
  void* result = nullptr;
  pthread_join(thread, &result);
  CHECK(result == PTHREAD_CANCELED);
  CHECK(program.ledger.live_bytes(0) == 0);
  program.start_allocating(2 * kMega, &other);
  const protocol::Reserve ask = rotad.next_ask();
  CHECK(ask.device_bytes == 2 * kMega);
  rotad.answer(ask, true, 2 * kMega);
  CHECK(becomes(other, api::CUDA_SUCCESS));
}

TEST_CASE("rotad hears what stays, and what it grants of that binds") {
  Rotad rotad;
  std::atomic<int> result{kPending};
  Program program;
  const auto allocate = [&](std::uint64_t bytes, std::atomic<int>* into) {
    program.threads.emplace_back([&program, bytes, into] {
      program.driver.enter_context(0);
      const auto call = [] { return api::CUDA_SUCCESS; };
      *into = program.memory.allocate_native(bytes, memory::Kind::kArray, call, [bytes] { return bytes; });
      program.driver.leave_context();
    });
  };
  allocate(kMega, &result);
  const protocol::Reserve ask = rotad.next_ask();
  CHECK(ask.fixed_bytes == kMega);
  CHECK(ask.movable_bytes == 0);
  rotad.answer(ask, true, 50 * kMega, 0);  // none of that stays, if it says so
  REQUIRE(becomes(result, api::CUDA_SUCCESS));
  std::atomic<int> second{kPending};
  allocate(2 * kMega, &second);
  rotad.answer(rotad.next_ask(), false, 50 * kMega, 0);
  CHECK(becomes(second, api::CUDA_ERROR_OUT_OF_MEMORY));
}

TEST_CASE("the sessions around a process are named before its GPUs, and a list that cannot be read allows nothing") {
  {
    setenv("ROTA_SESSION", "outer,gpu=8G:inner,host=1M", 1);
    Rotad rotad;
    Program program;
    const protocol::Session outer = rotad.next(Kind::kSession).body.session;
    CHECK(std::string(outer.id) == "outer");
    CHECK(outer.device_bytes == 8192 * kMega);
    CHECK(outer.host_bytes == protocol::kUnlimited);
    const protocol::Session inner = rotad.next(Kind::kSession).body.session;
    CHECK(std::string(inner.id) == "inner");
    CHECK(inner.host_bytes == kMega);
  }
  {
    setenv("ROTA_SESSION", "outer,gpu=foo", 1);
    Rotad rotad;
    Program program;
    CHECK(rotad.next(Kind::kSession).body.session.device_bytes == 0);
  }
  unsetenv("ROTA_SESSION");
}

TEST_CASE("cuMemGetInfo shows what the limit leaves to this process and all that share it") {
  Rotad rotad;
  rotad.limit(300 * kMega, 100 * kMega);
  std::atomic<int> result{kPending};
  Program program;
  rotad.next_state();
  program.start_allocating(40 * kMega, &result);
  rotad.answer(rotad.next_ask(), true, 60 * kMega);
  REQUIRE(becomes(result, api::CUDA_SUCCESS));
  std::size_t free = 0;
  std::size_t total = 0;
  REQUIRE(program.memory.info(&free, &total) == api::CUDA_SUCCESS);
  CHECK(total == 300 * kMega);
  CHECK(free == 120 * kMega);  // 100 plus what has been granted and is not used
}
