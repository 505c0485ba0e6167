// What the monitor does to the program's contexts, and what it must leave alone.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "generated/driver_real.h"
#include "runtime/gate/contexts.h"
#include "tests/unit/runtime/fake_driver.h"

using namespace rota;
using gate::Contexts;

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

TEST_CASE("every function that begins or ends a capture has an override, which keeps count of it") {
  std::set<std::string> overridden;
#define ROTA_OVERRIDE(name) overridden.insert(#name);
#include "runtime/overrides.inc"
#undef ROTA_OVERRIDE
  std::vector<std::string> missed;
  for (const std::string name : kSymbolNames) {
    const bool begins_or_ends = name.starts_with("cuStreamBegin") || name.starts_with("cuStreamEnd");
    if (begins_or_ends && overridden.count(name) == 0) missed.push_back(name);
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
  // Invalidated: the end fails and the capture is over all the same.
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

TEST_CASE("calls into a capturing stream need no lease; the legacy stream cannot capture") {
  test::FakeDriver driver;
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  const gate::Call into_stream{Symbol::k_cuLaunchKernel, kStream, true, false};
  const gate::Call into_legacy{Symbol::k_cuLaunchKernel, nullptr, true, false};
  const gate::Call into_own{Symbol::k_cuLaunchKernel_ptsz, nullptr, true, true};
  const gate::Call fork{Symbol::k_cuStreamWaitEvent, reinterpret_cast<api::CUstream>(0x600), true, false};
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
  const gate::Call call{Symbol::k_cuLaunchKernel, kStream, true, false};
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
    contexts.end_context(
        context,
        [&] {
          driver.destroy(context);
          return api::CUDA_SUCCESS;
        },
        [](api::CUresult result) { return result == api::CUDA_SUCCESS; });
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

namespace {

// The fake driver's events, by stream: what is recorded on a held stream is not reached.
std::map<api::CUevent, api::CUstream> recorded_on;
std::set<api::CUstream> held;
int queries = 0;
int events_made = 0;
const api::CUstream kNonBlocking = reinterpret_cast<api::CUstream>(0x700);

// A driver of CUDA 12.4, which knows no context events.
void make_12_4(test::FakeDriver& driver) {
  recorded_on.clear();
  held.clear();
  queries = 0;
  events_made = 0;
  driver.set<api::cuEventCreate_fn>(Symbol::k_cuEventCreate, [](api::CUevent* event, unsigned) {
    *event = reinterpret_cast<api::CUevent>(std::uintptr_t{0x100000} + static_cast<unsigned>(++events_made));
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuDriverGetVersion_fn>(Symbol::k_cuDriverGetVersion, [](int* version) {
    *version = 12040;
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuCtxRecordEvent_fn>(Symbol::k_cuCtxRecordEvent,
                                       [](api::CUcontext, api::CUevent) { return api::CUDA_ERROR_NOT_SUPPORTED; });
  driver.set<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, [](api::CUevent event, api::CUstream stream) {
    recorded_on[event] = stream;
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuEventQuery_fn>(Symbol::k_cuEventQuery, [](api::CUevent event) {
    ++queries;
    return held.count(recorded_on[event]) > 0 ? api::CUDA_ERROR_NOT_READY : api::CUDA_SUCCESS;
  });
}

}  // namespace

TEST_CASE("on a driver before 12.5 the work of non-blocking streams is waited for too") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  contexts.stream_made(kNonBlocking, api::CU_STREAM_NON_BLOCKING);
  contexts.stream_made(kStream, api::CU_STREAM_DEFAULT);
  held = {kNonBlocking};
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  const auto progress = contexts.progress();
  CHECK_FALSE(progress.done);
  CHECK(progress.reached > 0);                                               // the legacy stream gets on
  for (const auto& [event, stream] : recorded_on) CHECK(stream != kStream);  // the legacy stream waits for it
  held.clear();
  CHECK(contexts.progress().done);
}

TEST_CASE("on a driver before 12.5 a destroyed stream's work is waited for, and the stream not touched again") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  contexts.stream_made(kNonBlocking, api::CU_STREAM_NON_BLOCKING);
  held = {kNonBlocking};
  contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_SUCCESS; });
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  CHECK_FALSE(contexts.progress().done);
  held.clear();
  CHECK(contexts.progress().done);
  recorded_on.clear();
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  for (const auto& [event, stream] : recorded_on) CHECK(stream != kNonBlocking);
}

TEST_CASE("a stream that could not be destroyed stays in the account") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  contexts.stream_made(kNonBlocking, api::CU_STREAM_NON_BLOCKING);
  contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_ERROR_NOT_PERMITTED; });
  held = {kNonBlocking};
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  CHECK_FALSE(contexts.progress().done);
}

TEST_CASE("destroying one handle twice revives no stream: the handle may be another's by then") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  contexts.stream_made(kNonBlocking, api::CU_STREAM_NON_BLOCKING);
  held = {kNonBlocking};  // its work goes on
  contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_SUCCESS; });
  contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_ERROR_INVALID_HANDLE; });
  recorded_on.clear();
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  for (const auto& [event, stream] : recorded_on) CHECK(stream != kNonBlocking);
  // A new stream of that handle is marked once, not also for the dead one.
  contexts.stream_made(kNonBlocking, api::CU_STREAM_NON_BLOCKING);
  contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_ERROR_NOT_PERMITTED; });
  recorded_on.clear();
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  CHECK(std::count_if(recorded_on.begin(), recorded_on.end(),
                      [](const auto& entry) { return entry.second == kNonBlocking; }) == 1);
}

TEST_CASE("streams that come and go leave nothing behind, though nobody waits") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  for (int i = 0; i < 1000; ++i) {
    contexts.stream_made(kNonBlocking, api::CU_STREAM_NON_BLOCKING);
    contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_SUCCESS; });
  }
  CHECK(events_made <= 16);
  CHECK(queries <= 1000);
  queries = 0;
  CHECK(contexts.progress().done);
  CHECK(queries <= 16);
}

TEST_CASE("streams destroyed while their work goes on cost the same, however many there are") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  held = {kNonBlocking};
  for (int i = 0; i < 1000; ++i) {
    contexts.stream_made(kNonBlocking, api::CU_STREAM_NON_BLOCKING);
    contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_SUCCESS; });
  }
  CHECK(queries <= 2000);
  CHECK_FALSE(contexts.progress().done);
  held.clear();
  CHECK(contexts.progress().done);
}

TEST_CASE("a stream destroyed while anything captures queries no event, which would end that capture") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  const auto destroy = [&] {
    contexts.stream_made(kNonBlocking, api::CU_STREAM_NON_BLOCKING);
    contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_SUCCESS; });
  };
  contexts.add(driver.enter_context(0), 0, false);
  begin(contexts, driver);  // in the second context
  driver.leave_context();
  for (int i = 0; i < 50; ++i) destroy();  // in the first
  CHECK(queries == 0);
  end(contexts, driver);
  destroy();
  CHECK(queries >= 50);
}

TEST_CASE("a context that cannot be made current is not marked: the event would be another context's") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  driver.set<api::cuCtxPushCurrent_v2_fn>(Symbol::k_cuCtxPushCurrent_v2,
                                          [](api::CUcontext) { return api::CUDA_ERROR_CONTEXT_IS_DESTROYED; });
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  CHECK(events_made == 0);
  CHECK(recorded_on.empty());
  CHECK(contexts.progress().done);
}

TEST_CASE("from 12.5 on streams are not kept account of: the context's event covers them") {
  test::FakeDriver driver;
  make_12_4(driver);
  driver.set<api::cuDriverGetVersion_fn>(Symbol::k_cuDriverGetVersion, [](int* version) {
    *version = 12050;
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuCtxRecordEvent_fn>(Symbol::k_cuCtxRecordEvent,
                                       [](api::CUcontext, api::CUevent) { return api::CUDA_SUCCESS; });
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  contexts.stream_made(kNonBlocking, api::CU_STREAM_NON_BLOCKING);
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  CHECK(recorded_on.empty());
}

TEST_CASE("after shut the monitor's calls reach no driver") {
  test::FakeDriver driver;
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  contexts.shut();
  CHECK(contexts.mark() == Contexts::Mark::kBusy);
  CHECK(driver.marks.load() == 0);
}
