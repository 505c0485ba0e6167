// Each call for which the driver could run out of memory is refused once, the program's and rota's: no crash, no wrong
// result, and in the end nothing is left, neither in the ledger nor on the GPUs.
#include <catch2/catch.hpp>

#include <array>

#include "generated/driver_real.h"
#include "tests/unit/runtime/memory/on_simgpu/machine.h"
#include "tests/unit/runtime/memory/on_simgpu/sweep_programs.h"

using namespace rota;
using namespace rota::test;

namespace {

int calls = 0;
int refused = 0;  // which of them; 0: none

// Replaces a function of simgpu.
template <Symbol kSymbol, typename Function>
struct Refusing;
template <Symbol kSymbol, typename... Arguments>
struct Refusing<kSymbol, CUresult(Arguments...)> {
  static inline CUresult (*simulated)(Arguments...) = nullptr;
  static CUresult call(Arguments... arguments) {
    return ++calls == refused ? CUDA_ERROR_OUT_OF_MEMORY : simulated(arguments...);
  }
  static void* instead_of(void* function) {
    simulated = reinterpret_cast<CUresult (*)(Arguments...)>(function);
    return reinterpret_cast<void*>(&call);
  }
};

// Every function of the policy that takes memory, and others that take some on the way; except events, one of which
// rota needs for each free of converted memory in stream order.
void* refusing(Symbol symbol, void* function) {
  constexpr bool kTrue = true;
  switch (symbol) {
#define ROTA_ALLOCATION(name, base, takes, gives_back, treatment) \
  case Symbol::k_##name:                                          \
    return (takes) == kTrue ? Refusing<Symbol::k_##name, api::name##_fn>::instead_of(function) : nullptr;
#include "generated/driver_allocations.inc"
#undef ROTA_ALLOCATION
#define ALSO(name)       \
  case Symbol::k_##name: \
    return Refusing<Symbol::k_##name, api::name##_fn>::instead_of(function);
    ALSO(cuDevicePrimaryCtxRetain)
    ALSO(cuStreamCreate)
    ALSO(cuStreamCreateWithPriority)
    ALSO(cuModuleLoadData)
    ALSO(cuMemSetAccess)
    ALSO(cuGraphCreate)
    ALSO(cuGraphAddMemsetNode)
    ALSO(cuGraphInstantiateWithFlags)
    ALSO(cuGraphLaunch)
    ALSO(cuLaunchKernel)
    ALSO(cuMemAdvise)
    ALSO(cuMemPrefetchAsync)
#undef ALSO
    default:
      return nullptr;
  }
}

// The memory that is free on both GPUs by the driver, after rota's contexts have ended as well.
std::array<std::size_t, 2> left() {
  std::array<std::size_t, 2> bytes{};
  for (const int device : {1, 0}) {
    EXPECT_OK(cu.cuDevicePrimaryCtxReset_v2(device));
    enter(device);
    std::size_t total = 0;
    EXPECT_OK(real::cuMemGetInfo_v2(&bytes[static_cast<std::size_t>(device)], &total));
    EXPECT_OK(cu.cuDevicePrimaryCtxRelease_v2(device));
    CUcontext popped = nullptr;
    EXPECT_OK(cu.cuCtxPopCurrent_v2(&popped));
  }
  return bytes;
}

std::string report_of(Mode mode, void (*program)(), int which) {
  return on_simgpu({.mode = mode, .limit = "", .replace = refusing, .neighbour = {}}, [&] {
    const auto before = left();
    calls = 0;
    refused = which;
    program();
    refused = 0;
    if (which == 0) note(fmt::format("{} calls", calls));
    EXPECT_EMPTY_BOOKS();
    EXPECT(left() == before);
  });
}

void sweep(void (*program)()) {
  for (const Mode mode : {Mode::kNative, Mode::kManaged, Mode::kSwap}) {
    const std::string whole = report_of(mode, program, 0);
    INFO(name_of(mode) << ":\n" << whole);
    CHECK(whole.find(" calls\n") != std::string::npos);
    CHECK(whole.find("not so") == std::string::npos);
    const int count = std::atoi(whole.c_str());
    CHECK(count > 20);
    for (int which = 1; which <= count; which += ROTA_TEST_EVERY) {
      const std::string report = report_of(mode, program, which);
      INFO("call " << which << " is refused");
      CHECK(report == "");
    }
  }
}

}  // namespace

TEST_CASE("a program like PyTorch survives the refusal of each allocation, and leaves nothing") {
  sweep(run_like_pytorch);
}

TEST_CASE("a program like JAX survives the refusal of each allocation, and leaves nothing") {
  sweep(run_like_jax);
}
