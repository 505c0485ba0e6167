// What the monitor does to the program's contexts, and what it must not touch.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/driver/contexts.h"
#include "tests/unit/runtime/driver/ending.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_driver.h"

using namespace rota;
using driver::Contexts;
using test::eventually;

namespace {

const api::CUstream kStream = reinterpret_cast<api::CUstream>(0x500);

api::CUresult begin(Contexts& contexts, test::FakeDriver& driver) {
  return contexts.begin_capture(kStream, false, [&] {
    driver.capturing.store(true);
    return api::CUDA_SUCCESS;
  });
}

api::CUresult end(Contexts& contexts, test::FakeDriver& driver) {
  return contexts.end_capture(kStream, false, [&] {
    driver.capturing.store(false);
    return api::CUDA_SUCCESS;
  });
}

}  // namespace

TEST_CASE("the work before a mark is done when the GPU has come that far, and not before") {
  test::FakeDriver driver;
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  driver.submitted = 7;
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  CHECK_FALSE(contexts.progress().done);
  driver.finished = 6;
  CHECK_FALSE(contexts.progress().done);
  driver.finished = 7;
  CHECK(contexts.progress().done);
}

TEST_CASE("marks show that a long queue gets on") {
  test::FakeDriver driver;
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  for (int i = 0; i < 100; ++i) {
    driver.submitted.fetch_add(1);
    REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  }
  const auto before = contexts.progress().reached;
  driver.finished = 10;
  const auto progress = contexts.progress();
  CHECK(progress.reached > before);
  CHECK_FALSE(progress.done);
  driver.finished = 100;
  CHECK(contexts.progress().done);
}

TEST_CASE("a context that captures is left alone until the capture ends") {
  test::FakeDriver driver;
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  REQUIRE(begin(contexts, driver) == api::CUDA_SUCCESS);
  CHECK(contexts.captures() == 1);
  CHECK(contexts.mark() == Contexts::Mark::kCapturing);
  CHECK(driver.marks.load() == 0);
  REQUIRE(end(contexts, driver) == api::CUDA_SUCCESS);
  CHECK(contexts.captures() == 0);
  CHECK(contexts.mark() == Contexts::Mark::kMarked);
  CHECK(driver.broken_captures.load() == 0);
}

TEST_CASE(
    "a context is waited for by a synchronization only where that is all of it, and never beside a capture that "
    "another thread may begin") {
  test::FakeDriver driver;
  Contexts contexts;
  const api::CUcontext other = driver.enter_context(1);
  const api::CUcontext context = driver.enter_context(0);
  CHECK_FALSE(contexts.synchronize(context));  // as if it were a green one
  contexts.add(context, 0, true);
  contexts.add(other, 1, true);
  CHECK(contexts.synchronize(context) == api::CUDA_SUCCESS);
  CHECK(driver.synchronizations == 1);
  CHECK_FALSE(contexts.synchronize(other));
  static api::CUresult answer;
  driver.set<api::cuCtxSynchronize_fn>(Symbol::k_cuCtxSynchronize, [] { return answer; });
  answer = api::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;  // of a capture that rota does not know of
  CHECK_FALSE(contexts.synchronize(context));
  answer = api::CUDA_ERROR_ILLEGAL_ADDRESS;
  CHECK(contexts.synchronize(context) == api::CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(begin(contexts, driver) == api::CUDA_SUCCESS);
  REQUIRE(end(contexts, driver) == api::CUDA_SUCCESS);
  CHECK(contexts.synchronize(context));  // this thread cannot begin another one meanwhile
  const auto by_another_thread = [&](const auto& call) { std::thread(call).join(); };
  by_another_thread([&] {
    real::cuCtxPushCurrent_v2(context);
    CHECK_FALSE(contexts.synchronize(context));
    begin(contexts, driver);
    end(contexts, driver);
    CHECK_FALSE(contexts.synchronize(context));
  });
  CHECK_FALSE(contexts.synchronize(context));
}

TEST_CASE("a capture is counted from before it begins, and is about to begin only once nobody synchronizes") {
  test::FakeDriver driver;
  static Contexts* at_hand;
  Contexts contexts;
  at_hand = &contexts;
  const api::CUcontext context = driver.enter_context(0);
  contexts.add(context, 0, true);
  static std::atomic<bool> synchronizes;
  static std::atomic<bool> counted;
  synchronizes = counted = false;
  driver.set<api::cuCtxSynchronize_fn>(Symbol::k_cuCtxSynchronize, [] {
    synchronizes = true;
    eventually([] { return !synchronizes.load(); });
    return api::CUDA_SUCCESS;
  });
  std::thread frees([&] {
    real::cuCtxPushCurrent_v2(context);
    contexts.synchronize(context);
  });
  REQUIRE(eventually([] { return synchronizes.load(); }));
  // It waits for the other thread only for a moment: that one may be waiting for this one.
  CHECK(contexts.begin_capture(nullptr, false, [] {
    counted = at_hand->captures() == 1;
    return api::CUDA_ERROR_ILLEGAL_STATE;
  }) == api::CUDA_ERROR_ILLEGAL_STATE);
  CHECK(counted.load());
  CHECK(contexts.captures() == 0);
  synchronizes = false;
  frees.join();
}

TEST_CASE("while anything captures, no context is marked: a capture can span them") {
  test::FakeDriver driver;
  Contexts contexts;
  contexts.add(driver.enter_context(1), 1, true);
  contexts.add(driver.enter_context(0), 0, true);
  REQUIRE(begin(contexts, driver) == api::CUDA_SUCCESS);
  CHECK(contexts.mark() == Contexts::Mark::kCapturing);
  CHECK(driver.marks.load() == 0);
  CHECK(driver.broken_captures.load() == 0);
  REQUIRE(end(contexts, driver) == api::CUDA_SUCCESS);
  CHECK(contexts.mark() == Contexts::Mark::kMarked);
  CHECK(driver.marks.load() == 2);
}

TEST_CASE("a context whose mark fails does not count as idle, and one that has failed for good runs nothing any more") {
  test::FakeDriver driver;
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  driver.submitted = 1;
  driver.mark_result = api::CUDA_ERROR_OUT_OF_MEMORY;
  CHECK(contexts.mark() == Contexts::Mark::kUnknown);
  driver.mark_result = api::CUDA_ERROR_ILLEGAL_ADDRESS;
  CHECK(contexts.mark() == Contexts::Mark::kMarked);
  CHECK(contexts.progress().done);
  driver.mark_result = api::CUDA_SUCCESS;
  CHECK(contexts.mark() == Contexts::Mark::kMarked);
  CHECK_FALSE(contexts.progress().done);
}

TEST_CASE("a GPU has no context until one is made there, and none when the last has ended") {
  test::FakeDriver driver;
  Contexts contexts;
  const api::CUcontext context = driver.enter_context(0);
  contexts.add(context, 0, true);
  CHECK_FALSE(contexts.none(0));
  CHECK(contexts.none(1));
  contexts.end_context(context, [] { return api::CUDA_SUCCESS; }, [](api::CUresult) { return true; });
  CHECK(contexts.none(0));
}

TEST_CASE("every function that begins or ends a capture has a gate, which keeps count of it") {
  std::vector<std::string> missed;
  for (std::size_t index = 0; index < kSymbolCount; ++index) {
    const std::string name = kSymbolNames[index];
    const bool begins_or_ends = name.starts_with("cuStreamBegin") || name.starts_with("cuStreamEnd");
    if (begins_or_ends && gates::table[index] == nullptr) missed.push_back(name);
  }
  CHECK(missed == std::vector<std::string>{});
}

TEST_CASE("a capture that begins while the monitor marks is never broken") {
  test::FakeDriver driver;
  Contexts contexts;
  const auto context = driver.enter_context(0);
  contexts.add(context, 0, true);
  std::atomic<bool> stop{false};
  std::thread monitor([&] {
    while (!stop.load()) {
      contexts.mark();
      contexts.progress();
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 500; ++round) {
    begin(contexts, driver);
    end(contexts, driver);
  }
  stop.store(true);
  monitor.join();
  CHECK(driver.broken_captures.load() == 0);
  CHECK(contexts.captures() == 0);
}

TEST_CASE("an end of capture that fails because it is the wrong stream ends nothing") {
  test::FakeDriver driver;
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  begin(contexts, driver);
  contexts.end_capture(kStream, false, [] { return api::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD; });
  CHECK(contexts.captures() == 1);
  // Invalidated: ending it fails, but the capture is over all the same.
  contexts.end_capture(kStream, false, [&] {
    driver.capturing.store(false);
    return api::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  });
  CHECK(contexts.captures() == 0);
}

TEST_CASE("a destroyed stream or context takes its capture with it") {
  test::FakeDriver driver;
  Contexts contexts;
  const auto context = driver.enter_context(0);
  contexts.add(context, 0, false);
  begin(contexts, driver);
  contexts.destroy_stream(kStream, [] { return api::CUDA_SUCCESS; });
  CHECK(contexts.captures() == 0);
  begin(contexts, driver);
  contexts.end_context(context, [] { return api::CUDA_SUCCESS; }, [](api::CUresult) { return true; });
  CHECK(contexts.captures() == 0);
}

TEST_CASE("calls into a capturing stream need no lease, and the legacy stream cannot capture") {
  test::FakeDriver driver;
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  const driver::Call into_stream{Symbol::k_cuLaunchKernel, kStream, true, false};
  const driver::Call into_legacy{Symbol::k_cuLaunchKernel, nullptr, true, false};
  const driver::Call into_own{Symbol::k_cuLaunchKernel_ptsz, nullptr, true, true};
  const driver::Call fork{Symbol::k_cuStreamWaitEvent, reinterpret_cast<api::CUstream>(0x600), true, false};
  CHECK_FALSE(contexts.submits_nothing(into_stream));
  CHECK_FALSE(contexts.submits_nothing(fork));
  begin(contexts, driver);
  CHECK(contexts.submits_nothing(into_stream));
  CHECK(contexts.submits_nothing(into_own));
  CHECK(contexts.submits_nothing(fork));
  CHECK_FALSE(contexts.submits_nothing(into_legacy));
  end(contexts, driver);
  CHECK_FALSE(contexts.submits_nothing(into_stream));
}

TEST_CASE("a second stream may be brought into a capture by another thread than the one that began it") {
  test::FakeDriver driver;
  Contexts contexts;
  const auto context = driver.enter_context(0);
  contexts.add(context, 0, true);
  const api::CUstream joins = reinterpret_cast<api::CUstream>(0x600);
  const auto passes = [&](Symbol symbol) {
    bool answer = false;
    std::thread([&] {
      real::cuCtxPushCurrent_v2(context);
      answer = contexts.submits_nothing({symbol, joins, true, false});
    }).join();
    return answer;
  };
  CHECK_FALSE(passes(Symbol::k_cuStreamWaitEvent));
  // The second stream itself does not capture yet.
  contexts.begin_capture(kStream, false, [] { return api::CUDA_SUCCESS; });
  CHECK(passes(Symbol::k_cuStreamWaitEvent));
  CHECK(passes(Symbol::k_cuStreamWaitEvent_ptsz));
  contexts.end_capture(kStream, false, [] { return api::CUDA_SUCCESS; });
  CHECK_FALSE(passes(Symbol::k_cuStreamWaitEvent));
}

TEST_CASE("without a current context nothing reaches a GPU, so no lease is needed") {
  test::FakeDriver driver;
  Contexts contexts;
  CHECK(contexts.submits_nothing({Symbol::k_cuLibraryLoadData, nullptr, false, false}));
  driver.enter_context(0);
  CHECK_FALSE(contexts.submits_nothing({Symbol::k_cuLibraryLoadData, nullptr, false, false}));
}

TEST_CASE("where the driver does not work, as in a forked child, its error is not waited for") {
  test::FakeDriver driver;
  Contexts contexts;
  driver.enter_context(0);
  const driver::Call call{Symbol::k_cuLaunchKernel, kStream, true, false};
  CHECK_FALSE(contexts.submits_nothing(call));
  driver.set<api::cuCtxGetCurrent_fn>(Symbol::k_cuCtxGetCurrent,
                                      [](api::CUcontext*) { return api::CUDA_ERROR_NOT_INITIALIZED; });
  CHECK(contexts.submits_nothing(call));
}

TEST_CASE("a context that is being destroyed is not touched by the monitor, nor after") {
  test::FakeDriver driver;
  Contexts contexts;
  std::atomic<bool> stop{false};
  std::thread monitor([&] {
    while (!stop.load()) {
      contexts.mark();
      contexts.progress();
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 300; ++round) {
    const auto context = driver.enter_context(0);
    contexts.add(context, 0, false);
    test::destroy(contexts, driver, context);
    driver.leave_context();
  }
  stop.store(true);
  monitor.join();
  CHECK(driver.dead_uses.load() == 0);
}

TEST_CASE("a driver before 12.5 is marked on the legacy stream instead") {
  test::FakeDriver driver;
  driver.set<api::cuCtxRecordEvent_fn>(Symbol::k_cuCtxRecordEvent,
                                       [](api::CUcontext, api::CUevent) { return api::CUDA_ERROR_NOT_SUPPORTED; });
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  driver.submitted = 3;
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  CHECK_FALSE(contexts.progress().done);
  driver.finished = 3;
  CHECK(contexts.progress().done);
}

TEST_CASE("after shut the monitor's calls reach no driver") {
  test::FakeDriver driver;
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  contexts.shut();
  CHECK(contexts.mark() == Contexts::Mark::kBusy);
  CHECK(driver.marks.load() == 0);
}
