// A thread of the program inside a long call: a copy to the host, which ends when the test says so.
#pragma once

#include <atomic>
#include <catch2/catch.hpp>
#include <cstddef>
#include <thread>

#include "generated/driver_gates.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_driver.h"

namespace rota::test {

class LongCall {
 public:
  // Returns once the thread is inside.
  explicit LongCall(FakeDriver& driver) {
    inside_ = ends_ = false;
    driver.set<api::cuMemcpyDtoH_v2_fn>(Symbol::k_cuMemcpyDtoH_v2, [](void*, api::CUdeviceptr, std::size_t) {
      inside_ = true;
      eventually([] { return ends_.load(); });
      return api::CUDA_SUCCESS;
    });
    thread_ = std::thread([&driver] {
      driver.enter_context(0);
      gates::cuMemcpyDtoH_v2(nullptr, 0, 1);
      driver.leave_context();
    });
    CHECK(eventually([] { return inside_.load(); }));
  }
  ~LongCall() { end(); }
  LongCall(const LongCall&) = delete;
  LongCall& operator=(const LongCall&) = delete;
  void end() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  static inline std::atomic<bool> inside_;
  static inline std::atomic<bool> ends_;
  std::thread thread_;
};

}  // namespace rota::test
