// Drivers before CUDA 12.5, which have no cuCtxRecordEvent: rota tracks streams instead.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <future>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "generated/driver_real.h"
#include "runtime/driver/contexts.h"
#include "tests/unit/runtime/driver/ending.h"
#include "tests/unit/runtime/fake_driver.h"

using namespace rota;
using namespace std::chrono_literals;
using driver::Contexts;

namespace {

// The fake driver's events, by stream: an event recorded on a held stream is not reached.
std::map<api::CUevent, api::CUstream> recorded_on;
std::set<api::CUstream> held;
int queries = 0;
int events_made = 0;
int strict_queries = 0;  // made by a thread not in RELAXED mode
api::CUstreamCaptureMode mode;
const api::CUstream kStream = reinterpret_cast<api::CUstream>(0x500);
const api::CUstream kNonBlocking = reinterpret_cast<api::CUstream>(0x700);
const api::CUstream kOwn = reinterpret_cast<api::CUstream>(0x900);  // made by rota
// What a query of the legacy stream returns, and how often it was made.
api::CUresult legacy_answer = api::CUDA_SUCCESS;
int legacy_queries = 0;

// A driver of CUDA 12.4, without context events.
void make_12_4(test::FakeDriver& driver) {
  recorded_on.clear();
  held.clear();
  queries = 0;
  events_made = 0;
  strict_queries = 0;
  legacy_answer = api::CUDA_SUCCESS;
  legacy_queries = 0;
  mode = api::CU_STREAM_CAPTURE_MODE_GLOBAL;
  driver.set<api::cuStreamCreate_fn>(Symbol::k_cuStreamCreate, [](api::CUstream* stream, unsigned flags) {
    *stream = kOwn;
    return flags == api::CU_STREAM_DEFAULT ? api::CUDA_SUCCESS : api::CUDA_ERROR_INVALID_VALUE;
  });
  driver.set<api::cuStreamQuery_fn>(Symbol::k_cuStreamQuery, [](api::CUstream) {
    ++legacy_queries;
    return legacy_answer;
  });
  driver.set<api::cuThreadExchangeStreamCaptureMode_fn>(Symbol::k_cuThreadExchangeStreamCaptureMode,
                                                        [](api::CUstreamCaptureMode* other) {
                                                          std::swap(mode, *other);
                                                          return api::CUDA_SUCCESS;
                                                        });
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
    if (mode != api::CU_STREAM_CAPTURE_MODE_RELAXED) ++strict_queries;
    return held.count(recorded_on[event]) > 0 ? api::CUDA_ERROR_NOT_READY : api::CUDA_SUCCESS;
  });
}

}  // namespace

TEST_CASE("on a driver before 12.5 every stream has marks of its own, and none is in the way of another's work") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  contexts.stream_made(kNonBlocking);
  contexts.stream_made(kStream);
  held = {kNonBlocking};
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  CHECK_FALSE(contexts.progress().done);
  std::set<api::CUstream> marked;
  for (const auto& [event, stream] : recorded_on) marked.insert(stream);
  CHECK(marked == std::set<api::CUstream>{kStream, kNonBlocking, kOwn});  // ours for the legacy stream
  held.clear();
  CHECK(contexts.progress().done);
}

TEST_CASE("only marks that the GPU did not pass at once show that it gets on") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  contexts.stream_made(kNonBlocking);
  contexts.stream_made(kStream);
  held = {kNonBlocking};
  // Its kernel waits for a call that the closed gate holds back: however often the other streams are marked.
  for (int i = 0; i < 100; ++i) {
    REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
    CHECK(contexts.progress().reached == 0);
  }
  held.clear();
  CHECK(contexts.progress().reached > 0);
}

TEST_CASE("before 12.5 threads' own default streams are asked about by the legacy one, which sees them") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  legacy_answer = api::CUDA_ERROR_NOT_READY;
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  CHECK_FALSE(contexts.progress().done);
  // Not while anything captures, since such a query would end the capture.
  contexts.begin_capture(kNonBlocking, false, [] { return api::CUDA_SUCCESS; });
  const int before = legacy_queries;
  CHECK_FALSE(contexts.progress().done);
  CHECK(legacy_queries == before);
  contexts.end_capture(kNonBlocking, false, [] { return api::CUDA_SUCCESS; });
  legacy_answer = api::CUDA_SUCCESS;
  CHECK(contexts.progress().done);
  // Nothing runs in a context that has failed permanently.
  legacy_answer = api::CUDA_ERROR_ILLEGAL_ADDRESS;
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  CHECK(contexts.progress().done);
}

TEST_CASE("where the driver makes no stream for it, the legacy stream itself is marked") {
  test::FakeDriver driver;
  make_12_4(driver);
  driver.set<api::cuStreamCreate_fn>(Symbol::k_cuStreamCreate,
                                     [](api::CUstream*, unsigned) { return api::CUDA_ERROR_OUT_OF_MEMORY; });
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  REQUIRE(recorded_on.size() == 1);
  CHECK(recorded_on.begin()->second == reinterpret_cast<api::CUstream>(1));  // CU_STREAM_LEGACY
  CHECK(contexts.progress().done);
}

TEST_CASE("on a driver before 12.5 a destroyed stream's work is waited for, and the stream not touched again") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  contexts.stream_made(kNonBlocking);
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
  contexts.stream_made(kNonBlocking);
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
  contexts.stream_made(kNonBlocking);
  held = {kNonBlocking};  // its work continues
  contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_SUCCESS; });
  contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_ERROR_INVALID_HANDLE; });
  recorded_on.clear();
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  for (const auto& [event, stream] : recorded_on) CHECK(stream != kNonBlocking);
  // A new stream of that handle is marked once, not also for the dead one.
  contexts.stream_made(kNonBlocking);
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
    contexts.stream_made(kNonBlocking);
    contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_SUCCESS; });
  }
  CHECK(events_made <= 16);
  CHECK(queries <= 1000);
  CHECK(strict_queries == 0);  // a capture that begins meanwhile in another thread is not disturbed
  CHECK(mode == api::CU_STREAM_CAPTURE_MODE_GLOBAL);
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
    contexts.stream_made(kNonBlocking);
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
    contexts.stream_made(kNonBlocking);
    contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_SUCCESS; });
  };
  contexts.add(driver.enter_context(0), 0, false);
  contexts.begin_capture(kStream, false, [] { return api::CUDA_SUCCESS; });  // in the second context
  driver.leave_context();
  for (int i = 0; i < 50; ++i) destroy();  // in the first
  CHECK(queries == 0);
  contexts.end_capture(kStream, false, [] { return api::CUDA_SUCCESS; });
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

TEST_CASE("before 12.5 streams come and go while a context is destroyed, which may wait for the GPU") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  const auto dying = driver.enter_context(0);
  contexts.add(dying, 0, false);
  contexts.add(driver.enter_context(0), 0, false);
  std::promise<void> begun;
  std::promise<void> others_are_through;
  bool waited_in_vain = false;
  std::thread destroyer([&] {
    contexts.end_context(
        dying,
        [&] {
          begun.set_value();
          waited_in_vain = others_are_through.get_future().wait_for(5s) != std::future_status::ready;
          return api::CUDA_SUCCESS;
        },
        [](api::CUresult) { return true; });
  });
  begun.get_future().wait();
  contexts.stream_made(kNonBlocking);
  contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_SUCCESS; });
  others_are_through.set_value();
  destroyer.join();
  CHECK_FALSE(waited_in_vain);
  CHECK_FALSE(contexts.known(dying));
}

TEST_CASE("the callback of a recapture may make and destroy streams and capture itself") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  contexts.add(driver.enter_context(0), 0, true);
  contexts.begin_capture(kStream, false, [&] {
    contexts.stream_made(kNonBlocking);
    contexts.begin_capture(kNonBlocking, false, [] { return api::CUDA_SUCCESS; });
    CHECK(contexts.captures() == 2);  // that which is about to begin, too
    contexts.end_capture(kNonBlocking, false, [] { return api::CUDA_SUCCESS; });
    contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_SUCCESS; });
    return api::CUDA_SUCCESS;
  });
  CHECK(contexts.captures() == 1);
  contexts.end_capture(kStream, false, [] { return api::CUDA_SUCCESS; });
  CHECK(contexts.captures() == 0);
}

TEST_CASE("before 12.5 streams, captures and contexts come and go in all threads while the monitor marks") {
  test::FakeDriver driver;
  driver.set<api::cuDriverGetVersion_fn>(Symbol::k_cuDriverGetVersion, [](int* version) {
    *version = 12040;
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuThreadExchangeStreamCaptureMode_fn>(Symbol::k_cuThreadExchangeStreamCaptureMode,
                                                        [](api::CUstreamCaptureMode*) { return api::CUDA_SUCCESS; });
  Contexts contexts;
  std::atomic<bool> stop{false};
  std::thread monitor([&] {
    while (!stop.load()) {
      contexts.mark();
      contexts.progress();
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (std::uintptr_t number = 1; number <= 3; ++number) {
    threads.emplace_back([&, number] {
      for (std::uintptr_t round = 0; round < 100; ++round) {
        const auto context = driver.enter_context(0);
        contexts.add(context, 0, false);
        for (std::uintptr_t i = 0; i < 12; ++i) {
          const auto stream = reinterpret_cast<api::CUstream>(number << 32 | round << 16 | i << 8);
          contexts.stream_made(stream);
          contexts.begin_capture(stream, false, [] { return api::CUDA_SUCCESS; });
          if (i % 2 == 0) contexts.end_capture(stream, false, [] { return api::CUDA_SUCCESS; });
          contexts.destroy_stream(stream, [] { return api::CUDA_SUCCESS; });
        }
        test::destroy(contexts, driver, context);
        driver.leave_context();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop.store(true);
  monitor.join();
  CHECK(contexts.captures() == 0);
  CHECK(driver.dead_uses.load() == 0);
}

TEST_CASE("a new stream takes its handle over from one that went with its context") {
  test::FakeDriver driver;
  make_12_4(driver);
  Contexts contexts;
  const auto dying = driver.enter_context(0);
  contexts.add(dying, 0, false);
  contexts.stream_made(kNonBlocking);
  driver.enter_context(0);
  contexts.stream_made(kNonBlocking);  // before the end of the other context is noticed
  contexts.destroy_stream(kNonBlocking, [] { return api::CUDA_SUCCESS; });
  CHECK(events_made == 0);
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
  contexts.stream_made(kNonBlocking);
  REQUIRE(contexts.mark() == Contexts::Mark::kMarked);
  CHECK(recorded_on.empty());
}
