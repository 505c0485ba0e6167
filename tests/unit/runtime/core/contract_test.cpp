// What the generated gates and the hand-written overrides do to the process's only runtime. Marks stay in it for good,
// so each case uses it in a child process.
#include "runtime/contract.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>

#include "generated/driver_gates.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"
#include "tests/unit/runtime/fake_driver.h"

using namespace rota;

namespace {

// Whether `holds` says so in a child whose runtime is fresh.
bool in_child(const std::function<bool()>& holds) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(holds() ? 0 : 1);
  int status = -1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// The table that the next cuGetExportTable gives. Its first word says how long it is.
std::array<std::uint64_t, 1024> table{};

api::CUresult get_export_table(const void** into, const api::CUuuid*) {
  *into = table.data();
  return api::CUDA_SUCCESS;
}

// Asks for the table with this identifier, byte by byte as in the policy. Returns whether the process is unmarked after
// it and has got the driver's own table, or a copy if the table is `gated`.
bool unmarked_after(const std::array<unsigned char, 16>& identifier, std::uint64_t first_word, bool gated = false) {
  test::FakeDriver driver;
  driver.set<api::cuGetExportTable_fn>(Symbol::k_cuGetExportTable, get_export_table);
  table[0] = first_word;
  api::CUuuid id{};
  std::memcpy(&id, identifier.data(), sizeof id);
  const void* got = nullptr;
  if (overrides::cuGetExportTable(&got, &id) != api::CUDA_SUCCESS || (got != table.data()) != gated) return false;
  return !runtime().unevictable();
}

struct Listed {
  std::uint64_t bytes;
  bool gated;
  std::array<unsigned char, 16> identifier;
};
const std::vector<Listed> kListed = {
#define ROTA_EXPORT_TABLE(bytes, gated, ...) {bytes, gated, {__VA_ARGS__}},
#include "generated/driver_export_tables.inc"
#undef ROTA_EXPORT_TABLE
};

}  // namespace

TEST_CASE("a call that hands memory to others marks the process once it succeeds, and not if it fails") {
  CHECK(in_child([] {
    test::FakeDriver driver;
    static api::CUresult answer = api::CUDA_ERROR_INVALID_VALUE;
    driver.set<api::cuMemExportToShareableHandle_fn>(
        Symbol::k_cuMemExportToShareableHandle,
        [](void*, api::CUmemGenericAllocationHandle, api::CUmemAllocationHandleType, unsigned long long) {
          return answer;
        });
    const auto share = [] {
      return gates::cuMemExportToShareableHandle(nullptr, 1, api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    };
    if (share() != api::CUDA_ERROR_INVALID_VALUE || runtime().unevictable()) return false;
    answer = api::CUDA_SUCCESS;
    return share() == api::CUDA_SUCCESS && runtime().unevictable();
  }));
}

TEST_CASE("during a call that reads addresses the thread is inside the gate, and not after it") {
  CHECK(in_child([] {
    test::FakeDriver driver;
    driver.set<api::cuMemGetAddressRange_v2_fn>(Symbol::k_cuMemGetAddressRange_v2,
                                                [](api::CUdeviceptr*, size_t* size, api::CUdeviceptr) {
                                                  *size = runtime().gate.traffic().inside;
                                                  return api::CUDA_SUCCESS;
                                                });
    size_t inside = 0;
    runtime();
    gates::cuMemGetAddressRange_v2(nullptr, &inside, 0);
    return inside == 1 && runtime().gate.traffic().inside == 0 && runtime().gate.traffic().calls == 0;
  }));
}

TEST_CASE("captures are counted by the gates that begin and end them, in every form") {
  CHECK(in_child([] {
    test::FakeDriver driver;
    driver.enter_context(0);
    const auto stream = reinterpret_cast<api::CUstream>(0x500);
    static std::uint32_t inside = 0;
    driver.set<api::cuStreamBeginCapture_v2_ptsz_fn>(Symbol::k_cuStreamBeginCapture_v2_ptsz,
                                                     [](api::CUstream, api::CUstreamCaptureMode) {
                                                       inside = runtime().gate.traffic().inside;
                                                       return api::CUDA_SUCCESS;
                                                     });
    driver.set<api::cuStreamEndCapture_fn>(Symbol::k_cuStreamEndCapture,
                                           [](api::CUstream, api::CUgraph*) { return api::CUDA_SUCCESS; });
    gates::cuStreamBeginCapture_v2_ptsz(stream, api::CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (runtime().contexts.captures() != 1 || inside != 1) return false;
    gates::cuStreamEndCapture(stream, nullptr);
    return runtime().contexts.captures() == 0;
  }));
}

TEST_CASE("a private table that the policy does not list marks the process") {
  CHECK_FALSE(in_child([] { return unmarked_after({0xde, 0xad}, 32); }));
}

TEST_CASE("a private table that the policy lists does not mark the process, if it is no longer than recorded") {
  for (const Listed& listed : kListed) {
    const std::uint64_t first_word = listed.bytes != 0 ? listed.bytes : 0x7f0012345678;
    CHECK(in_child([&] { return unmarked_after(listed.identifier, first_word, listed.gated); }));
    CHECK_FALSE(in_child([&] { return unmarked_after(listed.identifier, listed.bytes + 8); }));
    if (listed.bytes > 8) {
      CHECK(in_child([&] { return unmarked_after(listed.identifier, listed.bytes - 8, listed.gated); }));
    }
  }
}

TEST_CASE("a driver that refuses a table leaves the process unmarked") {
  CHECK(in_child([] {
    test::FakeDriver driver;
    driver.set<api::cuGetExportTable_fn>(Symbol::k_cuGetExportTable, [](const void** into, const api::CUuuid*) {
      *into = nullptr;
      return api::CUDA_ERROR_NOT_FOUND;
    });
    const void* got = nullptr;
    const api::CUuuid id{};
    return overrides::cuGetExportTable(&got, &id) == api::CUDA_ERROR_NOT_FOUND && !runtime().unevictable();
  }));
}

TEST_CASE("a context for graphics, or one that is attached to, is known like any other") {
  CHECK(in_child([] {
    test::FakeDriver driver;
    static api::CUcontext made = driver.enter_context(0);
    driver.set<api::cuGLCtxCreate_v2_fn>(Symbol::k_cuGLCtxCreate_v2, [](api::CUcontext* context, unsigned, int) {
      *context = made;
      return api::CUDA_SUCCESS;
    });
    api::CUcontext context = nullptr;
    return overrides::cuGLCtxCreate_v2(&context, 0, 0) == api::CUDA_SUCCESS && runtime().contexts.known(made);
  }));
  CHECK(in_child([] {
    test::FakeDriver driver;
    static api::CUcontext current = driver.enter_context(0);
    driver.set<api::cuCtxAttach_fn>(Symbol::k_cuCtxAttach, [](api::CUcontext* context, unsigned) {
      *context = current;
      return api::CUDA_SUCCESS;
    });
    api::CUcontext context = nullptr;
    return overrides::cuCtxAttach(&context, 0) == api::CUDA_SUCCESS && runtime().contexts.known(current);
  }));
}

TEST_CASE("a green context makes its GPU's primary context known, which ends with the last that keeps it") {
  CHECK(in_child([] {
    test::FakeDriver driver;
    static api::CUcontext primary = driver.enter_context(0);
    static int kept = 0;
    driver.set<api::cuDevicePrimaryCtxRetain_fn>(Symbol::k_cuDevicePrimaryCtxRetain, [](api::CUcontext* context, int) {
      ++kept;
      *context = primary;
      return api::CUDA_SUCCESS;
    });
    driver.set<api::cuDevicePrimaryCtxRelease_v2_fn>(Symbol::k_cuDevicePrimaryCtxRelease_v2, [](int) {
      --kept;
      return api::CUDA_SUCCESS;
    });
    driver.set<api::cuDevicePrimaryCtxGetState_fn>(Symbol::k_cuDevicePrimaryCtxGetState,
                                                   [](int, unsigned*, int* active) {
                                                     *active = kept > 0 ? 1 : 0;
                                                     return api::CUDA_SUCCESS;
                                                   });
    driver.set<api::cuGreenCtxCreate_fn>(Symbol::k_cuGreenCtxCreate,
                                         [](api::CUgreenCtx* green, api::CUdevResourceDesc, int, unsigned) {
                                           ++kept;
                                           *green = reinterpret_cast<api::CUgreenCtx>(0x77);
                                           return api::CUDA_SUCCESS;
                                         });
    driver.set<api::cuGreenCtxDestroy_fn>(Symbol::k_cuGreenCtxDestroy, [](api::CUgreenCtx) {
      --kept;
      return api::CUDA_SUCCESS;
    });
    driver.set<api::cuCtxFromGreenCtx_fn>(Symbol::k_cuCtxFromGreenCtx, [](api::CUcontext* context, api::CUgreenCtx) {
      *context = primary;
      return api::CUDA_SUCCESS;
    });
    api::CUgreenCtx green = nullptr;
    if (overrides::cuGreenCtxCreate(&green, nullptr, 0, 0) != api::CUDA_SUCCESS) return false;
    // As many keep it as without rota.
    if (!runtime().contexts.known(primary) || runtime().contexts.primary(0) != primary || kept != 1) return false;
    ++kept;  // the program retains it as well
    overrides::cuGreenCtxDestroy(green);
    if (!runtime().contexts.known(primary)) return false;
    overrides::cuGreenCtxCreate(&green, nullptr, 0, 0);
    --kept;
    overrides::cuGreenCtxDestroy(green);
    return !runtime().contexts.known(primary);
  }));
}
