// Which form of a set or copy the driver is asked for: a synchronous one must not wait because rota serves plain memory
// as managed memory.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"
#include "tests/unit/runtime/fake_driver.h"

using namespace rota;

namespace {

std::vector<std::string> called;
api::CUresult answer_of_async = api::CUDA_SUCCESS;

template <typename Shape>
api::CUresult shaped(api::CUresult (*copy)(const Shape*), api::CUdeviceptr to, api::CUdeviceptr from) {
  Shape shape{};
  shape.dstMemoryType = shape.srcMemoryType = api::CU_MEMORYTYPE_DEVICE;
  shape.dstDevice = to;
  shape.srcDevice = from;
  shape.WidthInBytes = 64;
  shape.Height = 1;
  return copy(&shape);
}

struct Form {
  const char* synchronous;
  const char* asynchronous;
  api::CUresult (*call)(api::CUdeviceptr to, api::CUdeviceptr from);
};

// clang-format off
const std::vector<Form> kSets = {
    {"cuMemsetD8_v2", "cuMemsetD8Async", [](auto to, auto) { return overrides::cuMemsetD8_v2(to, 1, 64); }},
    {"cuMemsetD8_v2_ptds", "cuMemsetD8Async_ptsz", [](auto to, auto) { return overrides::cuMemsetD8_v2_ptds(to, 1, 64); }},
    {"cuMemsetD16_v2", "cuMemsetD16Async", [](auto to, auto) { return overrides::cuMemsetD16_v2(to, 1, 64); }},
    {"cuMemsetD16_v2_ptds", "cuMemsetD16Async_ptsz", [](auto to, auto) { return overrides::cuMemsetD16_v2_ptds(to, 1, 64); }},
    {"cuMemsetD32_v2", "cuMemsetD32Async", [](auto to, auto) { return overrides::cuMemsetD32_v2(to, 1, 64); }},
    {"cuMemsetD32_v2_ptds", "cuMemsetD32Async_ptsz", [](auto to, auto) { return overrides::cuMemsetD32_v2_ptds(to, 1, 64); }},
    {"cuMemsetD2D8_v2", "cuMemsetD2D8Async", [](auto to, auto) { return overrides::cuMemsetD2D8_v2(to, 512, 1, 64, 4); }},
    {"cuMemsetD2D8_v2_ptds", "cuMemsetD2D8Async_ptsz", [](auto to, auto) { return overrides::cuMemsetD2D8_v2_ptds(to, 512, 1, 64, 4); }},
    {"cuMemsetD2D16_v2", "cuMemsetD2D16Async", [](auto to, auto) { return overrides::cuMemsetD2D16_v2(to, 512, 1, 64, 4); }},
    {"cuMemsetD2D16_v2_ptds", "cuMemsetD2D16Async_ptsz", [](auto to, auto) { return overrides::cuMemsetD2D16_v2_ptds(to, 512, 1, 64, 4); }},
    {"cuMemsetD2D32_v2", "cuMemsetD2D32Async", [](auto to, auto) { return overrides::cuMemsetD2D32_v2(to, 512, 1, 64, 4); }},
    {"cuMemsetD2D32_v2_ptds", "cuMemsetD2D32Async_ptsz", [](auto to, auto) { return overrides::cuMemsetD2D32_v2_ptds(to, 512, 1, 64, 4); }},
};
const std::vector<Form> kCopies = {
    {"cuMemcpy", "cuMemcpyAsync", [](auto to, auto from) { return overrides::cuMemcpy(to, from, 64); }},
    {"cuMemcpy_ptds", "cuMemcpyAsync_ptsz", [](auto to, auto from) { return overrides::cuMemcpy_ptds(to, from, 64); }},
    {"cuMemcpyPeer", "cuMemcpyPeerAsync", [](auto to, auto from) { return overrides::cuMemcpyPeer(to, nullptr, from, nullptr, 64); }},
    {"cuMemcpyPeer_ptds", "cuMemcpyPeerAsync_ptsz", [](auto to, auto from) { return overrides::cuMemcpyPeer_ptds(to, nullptr, from, nullptr, 64); }},
    {"cuMemcpyDtoD_v2", "cuMemcpyDtoDAsync_v2", [](auto to, auto from) { return overrides::cuMemcpyDtoD_v2(to, from, 64); }},
    {"cuMemcpyDtoD_v2_ptds", "cuMemcpyDtoDAsync_v2_ptsz", [](auto to, auto from) { return overrides::cuMemcpyDtoD_v2_ptds(to, from, 64); }},
    {"cuMemcpy2D_v2", "cuMemcpy2DAsync_v2", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY2D>(overrides::cuMemcpy2D_v2, to, from); }},
    {"cuMemcpy2D_v2_ptds", "cuMemcpy2DAsync_v2_ptsz", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY2D>(overrides::cuMemcpy2D_v2_ptds, to, from); }},
    {"cuMemcpy2DUnaligned_v2", "cuMemcpy2DAsync_v2", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY2D>(overrides::cuMemcpy2DUnaligned_v2, to, from); }},
    {"cuMemcpy2DUnaligned_v2_ptds", "cuMemcpy2DAsync_v2_ptsz", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY2D>(overrides::cuMemcpy2DUnaligned_v2_ptds, to, from); }},
    {"cuMemcpy3D_v2", "cuMemcpy3DAsync_v2", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY3D>(overrides::cuMemcpy3D_v2, to, from); }},
    {"cuMemcpy3D_v2_ptds", "cuMemcpy3DAsync_v2_ptsz", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY3D>(overrides::cuMemcpy3D_v2_ptds, to, from); }},
    {"cuMemcpy3DPeer", "cuMemcpy3DPeerAsync", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY3D_PEER>(overrides::cuMemcpy3DPeer, to, from); }},
    {"cuMemcpy3DPeer_ptds", "cuMemcpy3DPeerAsync_ptsz", [](auto to, auto from) { return shaped<api::CUDA_MEMCPY3D_PEER>(overrides::cuMemcpy3DPeer_ptds, to, from); }},
};
// clang-format on

// The process's runtime as a program has it: managed memory, no rotad.
struct Program {
  Program() {
    setenv("ROTA_MEMORY", "managed", 1);                  // NOLINT(concurrency-mt-unsafe)
    setenv("ROTA_SOCKET", "/nonexistent/rotad.sock", 1);  // NOLINT(concurrency-mt-unsafe)
    answer_of_async = api::CUDA_SUCCESS;
#define SAYS(name)                                                            \
  driver.set<api::name##_fn>(Symbol::k_##name, [](auto...) {                  \
    called.emplace_back(#name);                                               \
    const bool async = std::string(#name).find("Async") != std::string::npos; \
    return async ? answer_of_async : api::CUDA_SUCCESS;                       \
  });
    SAYS(cuMemsetD8_v2)
    SAYS(cuMemsetD8Async)
    SAYS(cuMemsetD8_v2_ptds)
    SAYS(cuMemsetD8Async_ptsz)
    SAYS(cuMemsetD16_v2)
    SAYS(cuMemsetD16Async)
    SAYS(cuMemsetD16_v2_ptds)
    SAYS(cuMemsetD16Async_ptsz)
    SAYS(cuMemsetD32_v2)
    SAYS(cuMemsetD32Async)
    SAYS(cuMemsetD32_v2_ptds)
    SAYS(cuMemsetD32Async_ptsz)
    SAYS(cuMemsetD2D8_v2)
    SAYS(cuMemsetD2D8Async)
    SAYS(cuMemsetD2D8_v2_ptds)
    SAYS(cuMemsetD2D8Async_ptsz)
    SAYS(cuMemsetD2D16_v2)
    SAYS(cuMemsetD2D16Async)
    SAYS(cuMemsetD2D16_v2_ptds)
    SAYS(cuMemsetD2D16Async_ptsz)
    SAYS(cuMemsetD2D32_v2)
    SAYS(cuMemsetD2D32Async)
    SAYS(cuMemsetD2D32_v2_ptds)
    SAYS(cuMemsetD2D32Async_ptsz)
    SAYS(cuMemcpy)
    SAYS(cuMemcpyAsync)
    SAYS(cuMemcpy_ptds)
    SAYS(cuMemcpyAsync_ptsz)
    SAYS(cuMemcpyPeer)
    SAYS(cuMemcpyPeerAsync)
    SAYS(cuMemcpyPeer_ptds)
    SAYS(cuMemcpyPeerAsync_ptsz)
    SAYS(cuMemcpyDtoD_v2)
    SAYS(cuMemcpyDtoDAsync_v2)
    SAYS(cuMemcpyDtoD_v2_ptds)
    SAYS(cuMemcpyDtoDAsync_v2_ptsz)
    SAYS(cuMemcpy2D_v2)
    SAYS(cuMemcpy2DAsync_v2)
    SAYS(cuMemcpy2D_v2_ptds)
    SAYS(cuMemcpy2DAsync_v2_ptsz)
    SAYS(cuMemcpy2DUnaligned_v2)
    SAYS(cuMemcpy2DUnaligned_v2_ptds)
    SAYS(cuMemcpy3D_v2)
    SAYS(cuMemcpy3DAsync_v2)
    SAYS(cuMemcpy3D_v2_ptds)
    SAYS(cuMemcpy3DAsync_v2_ptsz)
    SAYS(cuMemcpy3DPeer)
    SAYS(cuMemcpy3DPeerAsync)
    SAYS(cuMemcpy3DPeer_ptds)
    SAYS(cuMemcpy3DPeerAsync_ptsz)
#undef SAYS
    driver.set<api::cuMemAllocAsync_fn>(Symbol::k_cuMemAllocAsync,
                                        [](api::CUdeviceptr* address, size_t bytes, api::CUstream) {
                                          return test::FakeDriver::the().give_memory(address, bytes);
                                        });
    driver.enter_context(0);
    REQUIRE(overrides::cuMemAlloc_v2(&converted, 4096) == api::CUDA_SUCCESS);
    REQUIRE(overrides::cuMemAllocAsync(&pooled, 4096, nullptr) == api::CUDA_SUCCESS);
    REQUIRE(overrides::cuMemAllocManaged(&managed, 4096, api::CU_MEM_ATTACH_GLOBAL) == api::CUDA_SUCCESS);
  }
  // What the driver is asked for.
  static std::vector<std::string> asked(const Form& form, api::CUdeviceptr to, api::CUdeviceptr from) {
    called.clear();
    CHECK(form.call(to, from) == api::CUDA_SUCCESS);
    return called;
  }
  test::FakeDriver driver;
  api::CUdeviceptr converted = 0;
  api::CUdeviceptr pooled = 0;
  api::CUdeviceptr managed = 0;
};

using Calls = std::vector<std::string>;

}  // namespace

TEST_CASE("a synchronous set of converted memory is its asynchronous form, of other memory the program's own call") {
  Program p;
  for (const Form& form : kSets) {
    INFO(form.synchronous);
    CHECK(p.asked(form, p.converted + 100, 0) == Calls{form.asynchronous});
    CHECK(p.asked(form, p.pooled, 0) == Calls{form.synchronous});
    CHECK(p.asked(form, p.managed, 0) == Calls{form.synchronous});
    CHECK(p.asked(form, 0x1000, 0) == Calls{form.synchronous});
  }
}

TEST_CASE("a synchronous copy within the GPU that converted memory would make wait is its asynchronous form") {
  Program p;
  for (const Form& form : kCopies) {
    INFO(form.synchronous);
    CHECK(p.asked(form, p.converted, p.converted + 2048) == Calls{form.asynchronous});
    CHECK(p.asked(form, p.pooled, p.converted) == Calls{form.asynchronous});
    CHECK(p.asked(form, p.converted, p.pooled) == Calls{form.asynchronous});
    CHECK(p.asked(form, p.pooled, p.pooled + 2048) == Calls{form.synchronous});
    // The program's own managed memory makes the driver wait without rota, too, and memory of the host always did.
    CHECK(p.asked(form, p.converted, p.managed) == Calls{form.synchronous});
    CHECK(p.asked(form, p.converted, 0x1000) == Calls{form.synchronous});
  }
}

TEST_CASE("a copy from or to the host or an array waits as it did") {
  Program p;
  for (const auto type : {api::CU_MEMORYTYPE_HOST, api::CU_MEMORYTYPE_ARRAY}) {
    api::CUDA_MEMCPY2D shape{};
    shape.srcMemoryType = type;
    shape.dstMemoryType = api::CU_MEMORYTYPE_DEVICE;
    shape.dstDevice = shape.srcDevice = p.converted;
    called.clear();
    CHECK(overrides::cuMemcpy2D_v2(&shape) == api::CUDA_SUCCESS);
    CHECK(called == Calls{"cuMemcpy2D_v2"});
  }
  called.clear();
  CHECK(overrides::cuMemcpy2D_v2(nullptr) == api::CUDA_SUCCESS);
  CHECK(called == Calls{"cuMemcpy2D_v2"});
}

TEST_CASE("the program's own call answers what the asynchronous form refuses, and while anything captures") {
  Program p;
  answer_of_async = api::CUDA_ERROR_INVALID_VALUE;
  for (const Form& form : kCopies) {
    CHECK(p.asked(form, p.converted, p.converted) == Calls{form.asynchronous, form.synchronous});
  }
  answer_of_async = api::CUDA_SUCCESS;
  const auto stream = reinterpret_cast<api::CUstream>(0x5000);
  const auto done = [] { return api::CUDA_SUCCESS; };
  REQUIRE(runtime().contexts.begin_capture(stream, false, done) == api::CUDA_SUCCESS);
  CHECK(p.asked(kSets.front(), p.converted, 0) == Calls{kSets.front().synchronous});
  REQUIRE(runtime().contexts.end_capture(stream, false, done) == api::CUDA_SUCCESS);
  CHECK(p.asked(kSets.front(), p.converted, 0) == Calls{kSets.front().asynchronous});
}

TEST_CASE("a set or copy of memory that the program wants to be waited for is the program's own call") {
  Program p;
  p.driver.set<api::cuPointerSetAttribute_fn>(
      Symbol::k_cuPointerSetAttribute,
      [](const void*, api::CUpointer_attribute, api::CUdeviceptr) { return api::CUDA_SUCCESS; });
  const auto want = [&](unsigned on) {
    return overrides::cuPointerSetAttribute(&on, api::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p.converted + 64);
  };
  REQUIRE(want(1) == api::CUDA_SUCCESS);
  for (const Form& form : kSets) CHECK(p.asked(form, p.converted, 0) == Calls{form.synchronous});
  for (const Form& form : kCopies) {
    CHECK(p.asked(form, p.pooled, p.converted) == Calls{form.synchronous});
    CHECK(p.asked(form, p.converted, p.pooled) == Calls{form.synchronous});
  }
  REQUIRE(want(0) == api::CUDA_SUCCESS);
  CHECK(p.asked(kSets.front(), p.converted, 0) == Calls{kSets.front().asynchronous});
}
