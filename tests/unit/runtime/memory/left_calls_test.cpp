// Calls that reserve memory and wait, and that end in every way: by returning, failing, an exception, a cancelled
// thread, and by siglongjmp, after which no destructor has run.
#include <alloca.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csetjmp>
#include <functional>
#include <stdexcept>
#include <thread>

#include "runtime/core/undo.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/memory/memory_fixture.h"

namespace {

using namespace rota;
using test::eventually;
using test::Fixture;
using test::kMiB;

constexpr std::uint64_t kBytes = 100 * kMiB;

struct Waits : Fixture {
  explicit Waits(memory::Choice backend) : Fixture(test::limited(256 * kMiB, backend)) {
    driver.enter_context(0);
    turns.takes = [this](int, std::uint64_t, memory::Kind) {
      wait();
      return true;
    };
  }
  [[gnu::noinline]] api::CUresult allocate() {
    api::CUdeviceptr address = 0;
    return memory.allocate(&address, kBytes);
  }
  std::uint64_t live() const { return ledger.live_bytes(0); }
  std::function<void()> wait = [] {};
};

}  // namespace

TEST_CASE("an allocation that throws, or whose thread ends, while it waits leaves nothing reserved") {
  Waits f(memory::Choice::kNative);
  f.wait = [] { throw std::runtime_error("a handler's"); };
  CHECK_THROWS_AS(f.allocate(), std::runtime_error);
  CHECK(f.live() == 0);
  f.wait = [] { pthread_exit(nullptr); };
  std::thread([&] {
    f.driver.enter_context(0);
    f.allocate();
  }).join();
  CHECK(f.live() == 0);
}

TEST_CASE("a free that throws, or whose thread ends, leaves the memory to be freed again") {
  Fixture f(test::limited(256 * kMiB));
  f.driver.enter_context(0);
  api::CUdeviceptr address = 0;
  REQUIRE(f.memory.allocate(&address, kBytes) == api::CUDA_SUCCESS);
  const auto throws = []() -> api::CUresult { throw std::runtime_error("a handler's"); };
  CHECK_THROWS_AS(f.memory.free(address, throws), std::runtime_error);
  std::thread([&] {
    f.driver.enter_context(0);
    f.memory.free(address, []() -> api::CUresult { pthread_exit(nullptr); });
  }).join();
  CHECK(f.ledger.live_bytes(0) == kBytes);
  CHECK(f.memory.free(address, [] { return api::CUDA_SUCCESS; }) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 0);
  CHECK_FALSE(f.ledger.find(address));
}

// TSan and ASan follow no jump.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

namespace {

thread_local sigjmp_buf back;

// The handler's jump, without a signal.
[[gnu::noinline]] void jump_out_of(Waits& f) {
  f.wait = [] { siglongjmp(back, 1); };
  if (sigsetjmp(back, 0) == 0) {
    f.allocate();
    FAIL_CHECK("the wait has returned");
  }
  f.wait = [] {};
}

}  // namespace

TEST_CASE("an allocation that is left by siglongjmp while it waits is forgotten with the thread's next one") {
  for (const auto backend : {memory::Choice::kNative, memory::Choice::kManaged}) {
    Waits f(backend);
    for (int i = 0; i < 20; ++i) {
      jump_out_of(f);
      CHECK(f.live() == kBytes);  // nobody has seen it yet
    }
    // At the same depth, and closer to the beginning of the stack.
    CHECK(f.allocate() == api::CUDA_SUCCESS);
    CHECK(f.live() == kBytes);
    CHECK(f.allocate() == api::CUDA_SUCCESS);
    CHECK(f.live() == 2 * kBytes);
    // No more is counted than it has, so a third does not fit.
    CHECK(f.allocate() == api::CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(f.live() == 2 * kBytes);
  }
}

TEST_CASE("an allocation that is left by siglongjmp is forgotten when its thread ends") {
  Waits f(memory::Choice::kNative);
  std::thread([&] {
    f.driver.enter_context(0);
    jump_out_of(f);
  }).join();
  CHECK(f.live() == 0);
}

TEST_CASE("a call that another thread has left is undone once that blocks elsewhere, and one that waits is not") {
  Waits f(memory::Choice::kNative);
  std::atomic<int> step{0};
  std::atomic<bool> go{false};
  const auto blocks = [&] {
    while (!go.load()) usleep(1'000'000);
  };
  std::thread waiter([&] {
    f.driver.enter_context(0);
    f.wait = [&] {
      step = 1;
      while (!go.load()) usleep(1000);
    };
    CHECK(f.allocate() == api::CUDA_SUCCESS);
    go = false;
    static_cast<volatile char*>(alloca(16))[0] = 1;
    jump_out_of(f);
    step = 2;
    blocks();
  });
  REQUIRE(eventually([&] { return step.load() == 1; }));
  for (int i = 0; i < 50; ++i) CHECK_FALSE(undo_left_calls());
  CHECK(f.live() == kBytes);
  go = true;
  REQUIRE(eventually([&] { return step.load() == 2; }));
  CHECK(f.live() == 2 * kBytes);
  CHECK(eventually([&] { return undo_left_calls(); }));
  CHECK(f.live() == kBytes);
  CHECK_FALSE(undo_left_calls());
  go = true;
  waiter.join();
}

TEST_CASE("nested calls are undone one by one, also more of them than are remembered") {
  std::uint64_t undone = 0;
  const auto count = [](void* of, int, std::uint64_t bytes, std::uint32_t) {
    *static_cast<std::uint64_t*>(of) += bytes;
  };
  const std::function<void(int)> nest = [&](int left) {
    Undo undo(count, &undone, 0, 1);
    if (left % 2 == 0) undo.begin();
    if (left != 0) return nest(left - 1);
    CHECK(undone == 0);
  };
  nest(40);
  CHECK(undone == 21);
  {
    Undo kept(count, &undone, 0, 1);
    kept.begin();
    kept.commit();
  }
  CHECK(undone == 21);
}

TEST_CASE("what is to be undone moves with its object, and is undone once, by the first that comes to it") {
  std::uint64_t undone = 0;
  const auto count = [](void* of, int, std::uint64_t bytes, std::uint32_t) {
    *static_cast<std::uint64_t*>(of) += bytes;
  };
  {
    Undo first(count, &undone, 0, 1);
    first.begin();
    const Undo second(std::move(first));
    CHECK_FALSE(first);
    CHECK(second);
    // Another one at the address of the first: it would be taken for an abandoned call if the entry still named that
    // address.
    first.~Undo();
    new (&first) Undo(count, &undone, 0, 100);
    CHECK(undone == 0);
  }
  CHECK(undone == 1);
  {
    Undo begun(count, &undone, 0, 10);
    begun.begin();
    Undo kept(std::move(begun));
    kept.commit();
  }
  CHECK(undone == 1);
}

#endif
