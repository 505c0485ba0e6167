// What stream-ordered memory from the heap costs: the calls of the driver, and which threads wait for which.
#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "generated/driver_real.h"
#include "tests/unit/runtime/counting_driver.h"
#include "tests/unit/runtime/memory/served_fixture.h"

using namespace rota;
using namespace rota::memory;
using namespace rota::test;

namespace {
using Calls = std::map<std::string, long>;
}  // namespace

TEST_CASE("stream-ordered memory served from the heap asks the driver for little, and a free for one event's record") {
  Served f;
  const CountingDriver counted;
  std::vector<api::CUdeviceptr> held;
  for (int round = 0; round < 4; ++round) held.push_back(f.taken(4096));  // the span, the stream, the pool
  for (const api::CUdeviceptr address : held) f.free(address);
  counted.reset();
  const api::CUdeviceptr first = f.taken(4096);
  CHECK(counted.calls() == Calls{{"cuStreamGetId", 1}});
  counted.reset();
  f.free(first);
  CHECK(counted.calls() == Calls{{"cuStreamGetId", 1},
                                 {"cuCtxGetCurrent", 1},
                                 {"cuEventCreate", 1},
                                 {"cuEventRecord", 1},
                                 {"cuThreadExchangeStreamCaptureMode", 2}});
  // For a while the stream passes everything at once, and events are reused.
  f.taken(4096);
  counted.reset();
  for (int round = 0; round < 1000; ++round) f.free(f.taken(4096));
  Calls calls = counted.calls();
  CHECK(calls["cuEventCreate"] < 100);
  CHECK(calls["cuEventDestroy_v2"] == 0);
  CHECK(calls["cuEventQuery"] < 50);
  CHECK(counted.total() < 1000 * 5);
}

TEST_CASE(
    "allocating, asking for the pool's figures and freeing are four calls of the driver, or three in a null stream") {
  for (const api::CUstream stream : {kStream, api::CUstream{nullptr}}) {
    Served f;
    // So many frees that one event is unused, and none is due to be queried.
    for (int round = 0; round < 9; ++round) f.free(f.taken(4096, stream), stream);
    f.memory.sweep_deferred();
    const CountingDriver counted;
    const api::CUdeviceptr address = f.taken(4096, stream);
    f.attribute(api::CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    f.attribute(api::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    f.free(address, stream);
    if (stream != nullptr) {
      CHECK(counted.calls() == Calls{{"cuStreamGetId", 2}, {"cuCtxGetCurrent", 1}, {"cuEventRecord", 1}});
    } else {
      CHECK(counted.calls() == Calls{{"cuCtxGetCurrent", 2}, {"cuEventRecord", 1}});
    }
  }
}

TEST_CASE("which stream the null stream of a context is, is asked once in the context's life") {
  Served f;
  f.free(f.taken(4096, nullptr), nullptr);
  const CountingDriver counted;
  f.free(f.taken(4096, nullptr), nullptr);
  CHECK(counted.calls()["cuStreamGetId"] == 0);
  {
    Memory::ContextEnd end(f.memory, f.context);
    end.gone();
  }
  // The driver may give the handle to another context.
  f.free(f.taken(4096, nullptr), nullptr);
  CHECK(counted.calls()["cuStreamGetId"] == 1);
  // It has no other handle that rota knows.
  f.memory.green_context_ending();
  f.free(f.taken(4096, nullptr), nullptr);
  CHECK(counted.calls()["cuStreamGetId"] == 2);
}

TEST_CASE("a null stream of which the driver does not say which it is for once is asked about again") {
  static bool says;
  says = false;
  Served f;
  f.driver.set<api::cuStreamGetId_fn>(Symbol::k_cuStreamGetId, [](api::CUstream, unsigned long long* number) {
    *number = 9;
    return says ? api::CUDA_SUCCESS : api::CUDA_ERROR_UNKNOWN;
  });
  f.work();  // so that nothing has been passed
  f.free(f.taken(4096, nullptr), nullptr);
  says = true;
  const api::CUdeviceptr address = f.taken(4096, nullptr);
  f.free(address, nullptr);
  CHECK(f.taken(4096, nullptr) == address);
}

TEST_CASE("while some stream captures, and where an event is made, a free calls the driver in relaxed mode") {
  static api::CUstreamCaptureMode mode;
  static bool relaxed;
  static bool made_relaxed;
  Served f;
  mode = api::CU_STREAM_CAPTURE_MODE_GLOBAL;
  f.driver.set<api::cuThreadExchangeStreamCaptureMode_fn>(Symbol::k_cuThreadExchangeStreamCaptureMode,
                                                          [](api::CUstreamCaptureMode* exchanged) {
                                                            std::swap(mode, *exchanged);
                                                            return api::CUDA_SUCCESS;
                                                          });
  f.driver.set<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, [](auto...) {
    relaxed = mode == api::CU_STREAM_CAPTURE_MODE_RELAXED;
    return api::CUDA_SUCCESS;
  });
  f.driver.set<api::cuEventCreate_fn>(Symbol::k_cuEventCreate, [](api::CUevent* event, unsigned) {
    made_relaxed = mode == api::CU_STREAM_CAPTURE_MODE_RELAXED;
    *event = reinterpret_cast<api::CUevent>(0x7000);
    return api::CUDA_SUCCESS;
  });
  f.free(f.taken(4096));
  CHECK(made_relaxed);
  for (const bool captures : {true, false}) {
    REQUIRE(f.memory.free_async(f.taken(4096), kStream, false, no_call, captures) == api::CUDA_SUCCESS);
    CHECK(relaxed == captures);
    CHECK(mode == api::CU_STREAM_CAPTURE_MODE_GLOBAL);
  }
}

TEST_CASE("a stream that never gets any further is not asked about at each free") {
  Served f;
  const CountingDriver counted;
  f.work();
  for (int round = 0; round < 1000; ++round) f.free(f.taken(4096));
  CHECK(counted.calls()["cuEventQuery"] < 20);
  CHECK(counted.calls()["cuMemAllocManaged"] == 1);
}

TEST_CASE("the driver is never asked about events with a lock held that allocations need") {
  static Served* program;
  static std::atomic<int> served;
  static std::atomic<bool> asked;
  Served f;
  program = &f;
  served = 0;
  asked = false;
  f.work();
  const api::CUdeviceptr first = f.taken(kMiB);
  f.taken(kMiB);
  f.free(first);
  // While one thread asks whether the event is reached, others allocate and free.
  f.driver.set<api::cuEventQuery_fn>(Symbol::k_cuEventQuery, [](api::CUevent) {
    if (asked.exchange(true)) return api::CUDA_ERROR_NOT_READY;
    std::thread([] {
      real::cuCtxPushCurrent_v2(program->context);
      api::CUdeviceptr address = 0;
      if (program->take(kMiB, &address) == api::CUDA_SUCCESS) served.fetch_add(1);
      if (program->memory.free_async(address, kStream, false, no_call) == api::CUDA_SUCCESS) served.fetch_add(1);
    }).join();
    return api::CUDA_ERROR_NOT_READY;
  });
  f.memory.trim_pool(kPool, UINT64_MAX);
  CHECK(asked);
  CHECK(served == 2);
}

TEST_CASE("a context ends only when nobody asks the driver about its events any more") {
  static Served* program;
  static std::atomic<bool> begun;
  static std::atomic<bool> destroyed;
  static std::atomic<bool> too_early;
  static std::thread ender;
  Served f;
  program = &f;
  begun = destroyed = too_early = false;
  f.work();
  f.free(f.taken(kMiB));
  f.driver.set<api::cuEventQuery_fn>(Symbol::k_cuEventQuery, [](api::CUevent) {
    ender = std::thread([] {
      begun = true;
      Memory::ContextEnd ending(program->memory, program->context);
      program->driver.destroy(program->context);
      destroyed = true;
      ending.gone();
    });
    // Nothing shows that the other thread waits; if it did not, it would finish long before.
    while (!begun) std::this_thread::yield();
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (!destroyed && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    too_early = destroyed.load();
    return api::CUDA_SUCCESS;
  });
  f.memory.trim_pool(kPool, UINT64_MAX);
  ender.join();
  CHECK(destroyed);
  CHECK_FALSE(too_early);
  CHECK(f.ledger.live_bytes(0) == 0);
  CHECK(f.driver.dead_uses == 0);
}

TEST_CASE("a stream that gets the handle of a destroyed one is another stream") {
  static std::atomic<unsigned long long> number;
  Served f;
  number = 1;
  f.driver.set<api::cuStreamGetId_fn>(Symbol::k_cuStreamGetId, [](api::CUstream, unsigned long long* id) {
    *id = number.load();
    return api::CUDA_SUCCESS;
  });
  const api::CUdeviceptr first = f.taken(kSpan);
  f.work();
  f.free(first);
  number = 2;
  CHECK(f.taken(kSpan) != first);
  number = 1;
  CHECK(f.taken(kSpan) == first);
}

TEST_CASE("what one question tells of several frees is right although threads overtake each other") {
  static Served* program;
  static api::CUdeviceptr late;
  static bool overtaken;
  Served f;
  program = &f;
  overtaken = false;
  const api::CUdeviceptr early = f.taken(kSpan);
  late = f.taken(kSpan);
  f.work();
  // Between one thread's record and the end of its free, another thread submits work to the stream and frees behind it.
  f.driver.set<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, [](api::CUevent event, api::CUstream) {
    {
      const std::lock_guard lock(program->driver.mutex);
      program->driver.events[event] = program->driver.submitted.load();
    }
    if (!std::exchange(overtaken, true)) {
      std::thread([] {
        real::cuCtxPushCurrent_v2(program->context);
        program->work();
        program->free(late);
      }).join();
    }
    return api::CUDA_SUCCESS;
  });
  f.free(early);
  f.driver.finished = 1;  // the work before the first free, and not that before the other
  const api::CUdeviceptr first = f.taken(kSpan, kOther);
  const api::CUdeviceptr second = f.taken(kSpan, kOther);
  CHECK(first != late);
  CHECK(second != late);
  f.finish();
  CHECK(f.live_bytes() == 2 * kSpan);
}
