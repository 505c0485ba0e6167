// What tests of the simulated driver begin with.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "tests/unit/tools/simgpu/process.h"

namespace simgpu_test {

// Work that waits until the test opens the gate, and tells when it has begun.
struct Gate {
  std::atomic<bool> begun{false};
  std::atomic<bool> open{false};
  static void hold(void* data) {
    auto* gate = static_cast<Gate*>(data);
    gate->begun = true;
    gate->begun.notify_all();
    gate->open.wait(false);
  }
  void release() {
    open = true;
    open.notify_all();
  }
};

// Runs a test's body in a child that has loaded the driver and made the primary context of device 0 current. On a clock
// that is named, at time scale 1; else nothing waits.
inline std::string with_driver(const std::function<std::string(Library&)>& body, const char* memory = "64M",
                               const char* clock = nullptr) {
  TemporaryFolder folder;
  Child child([&]() -> std::string {
    if (clock != nullptr) setenv("ROTA_SIM_CLOCK", clock, 1);  // NOLINT(concurrency-mt-unsafe): one thread
    Library library(folder.file("state"), memory, clock != nullptr ? "1" : "0");
    CUcontext context = nullptr;
    EXPECT_OK(CU(cuInit)(0));
    EXPECT_OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
    EXPECT_OK(CU(cuCtxSetCurrent)(context));
    return body(library);
  });
  return child.wait();
}

}  // namespace simgpu_test
