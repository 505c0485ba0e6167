// Contexts whose handles come again: after a reset, and where the driver gives the handle of one that has ended to
// another.
#include <catch2/catch.hpp>

#include <atomic>
#include <thread>

#include "generated/driver_real.h"
#include "runtime/driver/contexts.h"
#include "tests/unit/runtime/driver/ending.h"
#include "tests/unit/runtime/fake_driver.h"

using namespace rota;
using driver::ContextLife;
using driver::Contexts;
using Within = driver::Contexts::Within;

namespace {

// Two contexts of a GPU.
struct Two {
  Two() {
    contexts.add(context, 0, true);
    contexts.add(other, 0, false);
  }
  test::FakeDriver driver;
  Contexts contexts;
  const api::CUcontext context = driver.enter_context(0);
  const api::CUcontext other = driver.enter_context(0);
};

// What the driver says of any context.
std::atomic<unsigned long long> number{0};

void says_numbers(test::FakeDriver& driver) {
  driver.set<api::cuCtxGetId_fn>(Symbol::k_cuCtxGetId, [](api::CUcontext, unsigned long long* id) {
    *id = number.load();
    return api::CUDA_SUCCESS;
  });
}

// A context that the driver knows by a number.
struct Numbered {
  Numbered() {
    says_numbers(driver);
    number = 3;
    contexts.add(context, 0, true);
  }
  test::FakeDriver driver;
  Contexts contexts;
  api::CUcontext context = driver.enter_context(0);
};

// As cuDevicePrimaryCtxReset of a context that is in use.
void reset(Contexts& contexts, test::FakeDriver& driver, api::CUcontext context) {
  contexts.end_context(
      context,
      [&] {
        driver.reset(context);
        return api::CUDA_SUCCESS;
      },
      [&](api::CUresult) {
        contexts.begin_anew(context);
        return false;
      });
}

// As cuCtxDestroy, and cuCtxCreate that gets the same handle.
void make_again(Contexts& contexts, test::FakeDriver& driver, api::CUcontext context) {
  test::destroy(contexts, driver, context);
  driver.reset(context);
  contexts.add(context, 0, false);
}

}  // namespace

TEST_CASE("what was begun in a context is not gone on with in the next one that has its handle") {
  Two two;
  auto& [driver, contexts, context, other] = two;
  const ContextLife before = contexts.any(0);
  const ContextLife beside = contexts.life_of(other);
  REQUIRE(before.context == context);
  REQUIRE(beside.context == other);
  CHECK(contexts.within(before, [] {}) == Within::kRan);
  const auto again = GENERATE(reset, make_again);
  again(contexts, driver, context);
  int ran = 0;
  CHECK(contexts.within(before, [&] { ++ran; }) == Within::kGone);
  CHECK(ran == 0);
  const ContextLife after = contexts.life_of(context);
  CHECK(after.context == context);
  CHECK(after != before);
  CHECK(contexts.within(after, [&] { ++ran; }) == Within::kRan);
  CHECK(contexts.within(beside, [&] { ++ran; }) == Within::kRan);
  CHECK(ran == 2);
  CHECK(contexts.within({}, [&] { ++ran; }) == Within::kGone);
}

TEST_CASE("marks that a context had before a reset are neither asked about nor used again") {
  test::FakeDriver driver;
  Contexts contexts;
  const api::CUcontext context = driver.enter_context(0);
  contexts.add(context, 0, true);
  // Some that are pending, and one that was passed and may be used again.
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  REQUIRE(contexts.progress().done);
  driver.submitted = 5;
  for (int i = 0; i < 3; ++i) REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  reset(contexts, driver, context);
  const auto progress = contexts.progress();
  CHECK(progress.looked);
  CHECK(progress.done);
  driver.submitted = 6;
  CHECK(contexts.mark() == Contexts::Mark::kMarked);
  CHECK_FALSE(contexts.progress().done);
  driver.finished = 6;
  CHECK(contexts.progress().done);
  CHECK(driver.dead_uses.load() == 0);
}

TEST_CASE("before 12.5 the streams that a context had before a reset are forgotten") {
  test::FakeDriver driver;
  driver.set<api::cuDriverGetVersion_fn>(Symbol::k_cuDriverGetVersion, [](int* version) {
    *version = 12040;
    return api::CUDA_SUCCESS;
  });
  static std::atomic<int> records;
  static const auto kStream = reinterpret_cast<api::CUstream>(0x500);
  records = 0;
  static api::cuEventRecord_fn* simulated = nullptr;
  simulated = reinterpret_cast<api::cuEventRecord_fn*>(real::table[static_cast<std::size_t>(Symbol::k_cuEventRecord)]);
  driver.set<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, [](api::CUevent event, api::CUstream stream) {
    if (stream == kStream) ++records;
    return simulated(event, stream);
  });
  Contexts contexts;
  const api::CUcontext context = driver.enter_context(0);
  contexts.add(context, 0, true);
  contexts.stream_made(kStream);
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  CHECK(records.load() == 1);
  reset(contexts, driver, context);
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  CHECK(records.load() == 1);
  CHECK(driver.dead_uses.load() == 0);
}

TEST_CASE("a reset ends the captures in its context, and no others") {
  Two two;
  auto& [driver, contexts, context, other] = two;
  const auto begin = [&](std::uintptr_t stream) {
    contexts.begin_capture(reinterpret_cast<api::CUstream>(stream), false, [] { return api::CUDA_SUCCESS; });
  };
  begin(0x500);  // in the context that is current
  driver.leave_context();
  begin(0x600);
  REQUIRE(contexts.captures() == 2);
  reset(contexts, driver, context);
  CHECK(contexts.captures() == 1);
  reset(contexts, driver, other);
  CHECK(contexts.captures() == 0);
}

TEST_CASE("a context is another one where the driver gives its handle another number, and gone where it knows none") {
  using Handle = Contexts::Handle;
  test::FakeDriver driver;
  Contexts contexts;
  const api::CUcontext context = driver.enter_context(0);
  SECTION("a driver that says no numbers") {
    contexts.add(context, 0, true);
    CHECK(contexts.handle_now(context) == Handle::kSame);
  }
  SECTION("one that does") {
    says_numbers(driver);
    number = 3;
    contexts.add(context, 0, true);
    CHECK(contexts.handle_now(context) == Handle::kSame);
    number = 4;
    CHECK(contexts.handle_now(context) == Handle::kOthers);
    reset(contexts, driver, context);
    CHECK(contexts.handle_now(context) == Handle::kSame);
    for (const auto& [result, handle] : {std::pair(api::CUDA_ERROR_INVALID_CONTEXT, Handle::kNobodys),
                                         std::pair(api::CUDA_ERROR_ILLEGAL_ADDRESS, Handle::kSame)}) {
      static api::CUresult answer;
      answer = result;
      driver.set<api::cuCtxGetId_fn>(Symbol::k_cuCtxGetId, [](auto...) { return answer; });
      CHECK(contexts.handle_now(context) == handle);
    }
  }
  CHECK(contexts.handle_now(nullptr) == Handle::kSame);
}

TEST_CASE("a context that is added under the handle of one whose end was not noticed begins a life of its own") {
  Numbered numbered;
  auto& [driver, contexts, context] = numbered;
  const driver::ContextLife before = contexts.life_of(context);
  contexts.add(context, 0, true);
  CHECK(contexts.life_of(context) == before);
  number = 4;
  contexts.add(context, 0, true);
  CHECK_FALSE(contexts.life_of(context) == before);
}

TEST_CASE("a context that the driver does not make current for once has neither failed nor finished") {
  Numbered numbered;
  auto& [driver, contexts, context] = numbered;
  contexts.add(driver.enter_context(1), 1, true);
  driver.submitted = 7;
  driver.set<api::cuCtxPushCurrent_v2_fn>(Symbol::k_cuCtxPushCurrent_v2,
                                          [](auto...) { return api::CUDA_ERROR_INVALID_CONTEXT; });
  CHECK(contexts.failed(0).empty());
  CHECK(contexts.any(0).context == context);
  CHECK(contexts.mark() == Contexts::Mark::kUnknown);
  driver.set<api::cuCtxGetId_fn>(Symbol::k_cuCtxGetId, [](auto...) { return api::CUDA_ERROR_INVALID_CONTEXT; });
  CHECK(contexts.failed(0).size() == 1);
  CHECK(contexts.mark() == Contexts::Mark::kMarked);
}

TEST_CASE("a context that the driver does not make current is not gone, and why is said") {
  test::FakeDriver driver;
  Contexts contexts;
  const api::CUcontext context = driver.enter_context(0);
  contexts.add(context, 0, true);
  driver.set<api::cuCtxPushCurrent_v2_fn>(Symbol::k_cuCtxPushCurrent_v2,
                                          [](auto...) { return api::CUDA_ERROR_UNKNOWN; });
  api::CUresult why = api::CUDA_SUCCESS;
  CHECK(contexts.within(contexts.life_of(context), [] {}, &why) == Contexts::Within::kRefused);
  CHECK(why == api::CUDA_ERROR_UNKNOWN);
}

TEST_CASE("while a thread resets contexts over and over, the monitor touches nothing that has ended") {
  test::FakeDriver driver;
  Contexts contexts;
  const api::CUcontext context = driver.enter_context(0);
  contexts.add(context, 0, true);
  std::atomic<bool> stop{false};
  std::thread monitor([&] {
    while (!stop.load()) {
      contexts.mark();
      contexts.progress();
      // A move: an event of one step is asked about in the next ones.
      const ContextLife life = contexts.any(0);
      api::CUevent event = nullptr;
      contexts.within(life, [&] { real::cuEventCreate(&event, 0); });
      for (int step = 0; step < 3 && event != nullptr; ++step) {
        contexts.within(life, [&] { real::cuEventQuery(event); });
      }
      contexts.within(life, [&] { real::cuEventDestroy_v2(event); });
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 500; ++round) {
    reset(contexts, driver, context);
    std::this_thread::yield();
  }
  stop.store(true);
  monitor.join();
  CHECK(driver.dead_uses.load() == 0);
}
