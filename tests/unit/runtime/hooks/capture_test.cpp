// The beginning of a capture, which keeps memory where it is from then on.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "generated/driver_gates.h"
#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;

TEST_CASE("a capture that finds memory out of place once it has the lock waits without it, and then begins") {
  CHECK(holds({.memory = "native"}, [](FakeDriver& driver) {
    driver.enter_context(0);
    runtime();  // created by one thread
    static std::atomic<bool> out;
    static std::atomic<int> begun;
    out = begun = 0;
    // Asked for under the lock: until then the monitor may have decided to move memory.
    driver.set<api::cuStreamGetCtx_fn>(Symbol::k_cuStreamGetCtx, [](api::CUstream, api::CUcontext*) {
      if (!out.exchange(true)) {
        runtime().gate.close();
        gate::out_of_place.store(true);
      }
      return api::CUDA_ERROR_INVALID_HANDLE;
    });
    driver.set<api::cuStreamBeginCapture_v2_fn>(Symbol::k_cuStreamBeginCapture_v2,
                                                [](api::CUstream, api::CUstreamCaptureMode) {
                                                  ++begun;
                                                  return api::CUDA_SUCCESS;
                                                });
    std::thread capturing([] {
      const auto stream = reinterpret_cast<api::CUstream>(0x5000);
      EXPECT(gates::cuStreamBeginCapture_v2(stream, api::CU_STREAM_CAPTURE_MODE_RELAXED) == api::CUDA_SUCCESS);
    });
    while (runtime().gate.standing() == 0) std::this_thread::yield();
    // Nobody brings memory back while the lock is held.
    EXPECT(runtime().contexts.within({}, [] {}) == driver::Contexts::Within::kGone);
    EXPECT(begun == 0 && runtime().contexts.captures() == 0);
    gate::out_of_place.store(false);
    runtime().gate.open();
    capturing.join();
    EXPECT(begun == 1 && runtime().contexts.captures() == 1);
  }));
}
