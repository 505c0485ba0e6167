// Contexts that end, in the fake driver and in rota's records.
#pragma once

#include "runtime/driver/contexts.h"
#include "tests/unit/runtime/fake_driver.h"

namespace rota::test {

// As cuCtxDestroy does.
inline void destroy(driver::Contexts& contexts, FakeDriver& driver, api::CUcontext context) {
  contexts.end_context(
      context,
      [&] {
        driver.destroy(context);
        return api::CUDA_SUCCESS;
      },
      [](api::CUresult result) { return result == api::CUDA_SUCCESS; });
}

}  // namespace rota::test
