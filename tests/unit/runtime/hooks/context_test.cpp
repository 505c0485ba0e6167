// Overrides of functions that create and end contexts: how long each context is known, and which memory ends with it.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/unit/runtime/hooks/program.h"
#include "tests/unit/runtime/monitor/fake_rotad.h"

using namespace rota;
using namespace rota::test;
using api::CUcontext;
using api::CUresult;

namespace {

constexpr int kGpu = 3;

// The driver's side: one context of kGpu, which is created and ended repeatedly.
CUcontext of_driver = nullptr;
CUresult answer = api::CUDA_SUCCESS;  // to calls that create or end it
std::atomic<int> refusals{0};         // how often a context is refused as out of memory before that
std::atomic<int> asked{0};            // for a context
CUresult make_one(CUcontext* into) {
  ++asked;
  if (refusals > 0 && refusals-- > 0) return api::CUDA_ERROR_OUT_OF_MEMORY;
  if (answer == api::CUDA_SUCCESS && into != nullptr) *into = of_driver;
  return answer;
}
int active = 0;         // what cuDevicePrimaryCtxGetState says
int kept = 0;           // times that the primary context is retained
bool detached = false;  // no longer a context

void install(FakeDriver& driver) {
  of_driver = driver.enter_context(kGpu);
#define MAKES(name) \
  driver.set<api::name##_fn>(Symbol::k_##name, [](CUcontext* into, auto...) { return make_one(into); });
  MAKES(cuCtxAttach)
  MAKES(cuCtxCreate)
  MAKES(cuCtxCreate_v2)
  MAKES(cuCtxCreate_v3)
  MAKES(cuCtxCreate_v4)
  MAKES(cuGLCtxCreate)
  MAKES(cuGLCtxCreate_v2)
  MAKES(cuVDPAUCtxCreate)
  MAKES(cuVDPAUCtxCreate_v2)
#undef MAKES
#define ENDS(name) driver.set<api::name##_fn>(Symbol::k_##name, [](auto...) { return answer; });
  ENDS(cuCtxDestroy)
  ENDS(cuCtxDestroy_v2)
  ENDS(cuCtxDetach)
  ENDS(cuDevicePrimaryCtxRelease)
  ENDS(cuDevicePrimaryCtxReset)
  ENDS(cuDevicePrimaryCtxReset_v2)
  ENDS(cuGreenCtxDestroy)
#undef ENDS
  driver.set<api::cuDevicePrimaryCtxRetain_fn>(Symbol::k_cuDevicePrimaryCtxRetain, [](CUcontext* into, int) {
    const CUresult result = make_one(into);
    if (result == api::CUDA_SUCCESS) ++kept;
    return result;
  });
  driver.set<api::cuDevicePrimaryCtxRelease_v2_fn>(Symbol::k_cuDevicePrimaryCtxRelease_v2, [](int) {
    if (answer == api::CUDA_SUCCESS) --kept;
    return answer;
  });
  driver.set<api::cuGreenCtxCreate_fn>(Symbol::k_cuGreenCtxCreate, [](api::CUgreenCtx* into, auto...) {
    const CUresult result = make_one(nullptr);
    if (result == api::CUDA_SUCCESS) *into = reinterpret_cast<api::CUgreenCtx>(0x77);
    return result;
  });
  driver.set<api::cuCtxFromGreenCtx_fn>(Symbol::k_cuCtxFromGreenCtx, [](CUcontext* into, api::CUgreenCtx) {
    *into = of_driver;
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuDevicePrimaryCtxGetState_fn>(Symbol::k_cuDevicePrimaryCtxGetState,
                                                 [](int, unsigned*, int* whether) {
                                                   *whether = active;
                                                   return api::CUDA_SUCCESS;
                                                 });
  driver.set<api::cuCtxGetApiVersion_fn>(Symbol::k_cuCtxGetApiVersion, [](CUcontext, unsigned*) {
    return detached ? api::CUDA_ERROR_INVALID_CONTEXT : api::CUDA_SUCCESS;
  });
}

struct Making {
  Symbol symbol;
  CUresult (*call)(CUcontext* into);
  bool primary = false;
};
// clang-format off
const Table<Making> kMaking = {
    {Symbol::k_cuCtxAttach, [](auto* into) { return overrides::cuCtxAttach(into, 0); }},
    {Symbol::k_cuCtxCreate, [](auto* into) { return overrides::cuCtxCreate(into, 0, kGpu); }},
    {Symbol::k_cuCtxCreate_v2, [](auto* into) { return overrides::cuCtxCreate_v2(into, 0, kGpu); }},
    {Symbol::k_cuCtxCreate_v3, [](auto* into) { return overrides::cuCtxCreate_v3(into, nullptr, 0, 0, kGpu); }},
    {Symbol::k_cuCtxCreate_v4, [](auto* into) { return overrides::cuCtxCreate_v4(into, nullptr, 0, kGpu); }},
    {Symbol::k_cuGLCtxCreate, [](auto* into) { return overrides::cuGLCtxCreate(into, 0, kGpu); }},
    {Symbol::k_cuGLCtxCreate_v2, [](auto* into) { return overrides::cuGLCtxCreate_v2(into, 0, kGpu); }},
    {Symbol::k_cuVDPAUCtxCreate, [](auto* into) { return overrides::cuVDPAUCtxCreate(into, 0, kGpu, {}, nullptr); }},
    {Symbol::k_cuVDPAUCtxCreate_v2, [](auto* into) { return overrides::cuVDPAUCtxCreate_v2(into, 0, kGpu, {}, nullptr); }},
    {Symbol::k_cuDevicePrimaryCtxRetain, [](auto* into) { return overrides::cuDevicePrimaryCtxRetain(into, kGpu); }, true},
    {Symbol::k_cuGreenCtxCreate, [](auto*) { api::CUgreenCtx green = nullptr; return overrides::cuGreenCtxCreate(&green, nullptr, kGpu, 0); }, true},
};

struct Ending {
  Symbol symbol;
  CUresult (*call)();
  enum class Counts { kNo, kPrimary, kAttached } counts = Counts::kNo;  // it ends the context for the last user alone
  bool empties = false;                                                 // memory ends although the context has users left
};
const Table<Ending> kEnding = {
    {Symbol::k_cuCtxDestroy, [] { return overrides::cuCtxDestroy(of_driver); }},
    {Symbol::k_cuCtxDestroy_v2, [] { return overrides::cuCtxDestroy_v2(of_driver); }},
    {Symbol::k_cuCtxDetach, [] { return overrides::cuCtxDetach(of_driver); }, Ending::Counts::kAttached},
    {Symbol::k_cuDevicePrimaryCtxRelease, [] { return overrides::cuDevicePrimaryCtxRelease(kGpu); }, Ending::Counts::kPrimary},
    {Symbol::k_cuDevicePrimaryCtxRelease_v2, [] { return overrides::cuDevicePrimaryCtxRelease_v2(kGpu); }, Ending::Counts::kPrimary},
    {Symbol::k_cuDevicePrimaryCtxReset, [] { return overrides::cuDevicePrimaryCtxReset(kGpu); }, Ending::Counts::kPrimary, true},
    {Symbol::k_cuDevicePrimaryCtxReset_v2, [] { return overrides::cuDevicePrimaryCtxReset_v2(kGpu); }, Ending::Counts::kPrimary, true},
    {Symbol::k_cuGreenCtxDestroy, [] { return overrides::cuGreenCtxDestroy(reinterpret_cast<api::CUgreenCtx>(0x77)); }, Ending::Counts::kPrimary},
};
// clang-format on

}  // namespace

TEST_CASE("every call that makes a context makes it known, with its GPU, and as primary where it is") {
  for (const Making& row : kMaking) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      CUcontext made = nullptr;
      answer = api::CUDA_ERROR_INVALID_DEVICE;
      EXPECT(row.call(&made) == api::CUDA_ERROR_INVALID_DEVICE);
      EXPECT(made == nullptr);
      EXPECT(!runtime().contexts.known(of_driver));
      answer = api::CUDA_SUCCESS;
      EXPECT(row.call(&made) == api::CUDA_SUCCESS);
      EXPECT(made == (row.symbol == Symbol::k_cuGreenCtxCreate ? nullptr : of_driver));
      EXPECT(runtime().contexts.known(of_driver));
      EXPECT(runtime().contexts.any(kGpu).context == of_driver);
      EXPECT(runtime().contexts.primary(kGpu) == (row.primary ? of_driver : nullptr));
      // As often as without rota.
      EXPECT(kept == (row.symbol == Symbol::k_cuDevicePrimaryCtxRetain ? 1 : 0));
    }));
  }
}

TEST_CASE("every call that ends a context ends its memory with it, once the last user has let it go") {
  for (const Ending& row : kEnding) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      CUcontext made = nullptr;
      EXPECT(overrides::cuDevicePrimaryCtxRetain(&made, kGpu) == api::CUDA_SUCCESS);
      const auto allocate = [] {
        api::CUdeviceptr address = 0;
        EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
      };
      allocate();
      // Another context's memory stays, whatever happens to this one.
      driver.enter_context(kGpu);
      allocate();
      driver.leave_context();

      answer = api::CUDA_ERROR_INVALID_CONTEXT;
      EXPECT(row.call() == api::CUDA_ERROR_INVALID_CONTEXT);
      EXPECT(live_bytes() == 2 * kMiB);
      EXPECT(runtime().contexts.known(of_driver));
      answer = api::CUDA_SUCCESS;
      if (row.counts != Ending::Counts::kNo) {
        active = 1;
        const auto before = runtime().contexts.life_of(of_driver);
        EXPECT(row.call() == api::CUDA_SUCCESS);
        EXPECT(live_bytes() == (row.empties ? 1 : 2) * kMiB);
        EXPECT(runtime().contexts.known(of_driver));
        EXPECT((runtime().contexts.life_of(of_driver) != before) == row.empties);
        if (row.empties) allocate();
        EXPECT(live_bytes() == 2 * kMiB);
      }
      active = 0;
      detached = true;
      EXPECT(row.call() == api::CUDA_SUCCESS);
      EXPECT(live_bytes() == kMiB);
      EXPECT(!runtime().contexts.known(of_driver));
    }));
  }
}

TEST_CASE("a primary context that another thread has retained anew by the time that it is asked about has ended") {
  enum class Next : std::uint8_t { kSame, kUnderItsHandle, kUnderAnother };
  for (const Next next : {Next::kSame, Next::kUnderItsHandle, Next::kUnderAnother}) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      install(driver);
      static unsigned long long number;
      number = 1;
      driver.set<api::cuCtxGetId_fn>(Symbol::k_cuCtxGetId, [](CUcontext, unsigned long long* id) {
        *id = number;
        return number != 0 ? api::CUDA_SUCCESS : api::CUDA_ERROR_INVALID_CONTEXT;
      });
      CUcontext made = nullptr;
      EXPECT(overrides::cuDevicePrimaryCtxRetain(&made, kGpu) == api::CUDA_SUCCESS);
      api::CUdeviceptr address = 0;
      EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
      const auto before = runtime().contexts.life_of(of_driver);
      if (next == Next::kUnderItsHandle) number = 2;
      if (next == Next::kUnderAnother) number = 0;
      active = 1;
      EXPECT(overrides::cuDevicePrimaryCtxRelease_v2(kGpu) == api::CUDA_SUCCESS);
      EXPECT(live_bytes() == (next == Next::kSame ? kMiB : 0));
      EXPECT(runtime().contexts.known(of_driver) == (next != Next::kUnderAnother));
      EXPECT((runtime().contexts.life_of(of_driver) == before) == (next == Next::kSame));
    }));
  }
}

TEST_CASE("a primary context of which the driver does not say whether it is in use is kept") {
  CHECK(holds({}, [](FakeDriver& driver) {
    install(driver);
    driver.set<api::cuDevicePrimaryCtxGetState_fn>(Symbol::k_cuDevicePrimaryCtxGetState,
                                                   [](auto...) { return api::CUDA_ERROR_DEINITIALIZED; });
    CUcontext made = nullptr;
    EXPECT(overrides::cuDevicePrimaryCtxRetain(&made, kGpu) == api::CUDA_SUCCESS);
    EXPECT(overrides::cuDevicePrimaryCtxRelease_v2(kGpu) == api::CUDA_SUCCESS);
    EXPECT(runtime().contexts.known(of_driver));
  }));
}

TEST_CASE("a green context that the driver says nothing of is destroyed by the program's own call alone") {
  CHECK(holds({}, [](FakeDriver& driver) {
    install(driver);
    CUcontext made = nullptr;
    EXPECT(overrides::cuDevicePrimaryCtxRetain(&made, kGpu) == api::CUDA_SUCCESS);
    driver.set<api::cuCtxFromGreenCtx_fn>(Symbol::k_cuCtxFromGreenCtx,
                                          [](auto...) { return api::CUDA_ERROR_INVALID_CONTEXT; });
    EXPECT(overrides::cuGreenCtxDestroy(reinterpret_cast<api::CUgreenCtx>(0x77)) == api::CUDA_SUCCESS);
    EXPECT(runtime().contexts.known(of_driver));
  }));
}

namespace {

protocol::Message next_of(FakeRotad& rotad) {
  for (;;) {
    const protocol::Message message = rotad.next();
    if (message.kind != protocol::Kind::kUsage) return message;
  }
}

// A thread asks for a context that the driver refuses so many times; rotad hears of it and gives the whole GPU.
void make_with_room(FakeDriver& driver, const Making& row, int times, CUresult expected) {
  now_testing(name_of(row.symbol));
  install(driver);
  driver.leave_context();
  driver.device_bytes = 1024 * kMiB;
  FakeRotad rotad;
  rotad.promise_room();
  refusals = times;
  asked = 0;
  answer = api::CUDA_SUCCESS;
  CUcontext made = nullptr;
  CUresult result = api::CUDA_ERROR_UNKNOWN;
  std::thread program([&] { result = row.call(&made); });
  EXPECT(next_of(rotad).kind == protocol::Kind::kWant);
  EXPECT(asked == 1);
  rotad.grant(1, 1, 100 * kMiB);
  const protocol::Message ask = next_of(rotad);
  EXPECT(ask.kind == protocol::Kind::kRoom);
  EXPECT(ask.body.room.bytes == 1024 * kMiB);
  EXPECT(asked == 1);
  rotad.promise(1024 * kMiB);
  program.join();
  EXPECT(result == expected);
  EXPECT(asked == 2 || row.symbol == Symbol::k_cuGreenCtxCreate);  // which asks for its primary context besides
  EXPECT(runtime().contexts.known(of_driver) == (expected == api::CUDA_SUCCESS));
  runtime().monitor.at_exit();
}

}  // namespace

TEST_CASE(
    "a context that the driver refuses for lack of memory is requested once more when others have evicted theirs") {
  for (const Making& row : kMaking) {
    if (row.symbol == Symbol::k_cuCtxAttach) continue;  // makes none
    CHECK(holds({}, [&](FakeDriver& driver) { make_with_room(driver, row, 1, api::CUDA_SUCCESS); }));
  }
  const Making& any = kMaking[1];
  CHECK(holds({}, [&](FakeDriver& driver) { make_with_room(driver, any, 2, api::CUDA_ERROR_OUT_OF_MEMORY); }));
}

TEST_CASE(
    "a turn that ends before others have evicted memory for a context is no answer: the thread waits for the next "
    "one") {
  CHECK(holds({}, [](FakeDriver& driver) {
    install(driver);
    driver.leave_context();
    driver.device_bytes = 1024 * kMiB;
    FakeRotad rotad;
    rotad.promise_room();
    refusals = 1000;
    answer = api::CUDA_SUCCESS;
    CUcontext made = nullptr;
    CUresult result = api::CUDA_ERROR_UNKNOWN;
    std::thread program([&] { result = kMaking[1].call(&made); });
    EXPECT(next_of(rotad).kind == protocol::Kind::kWant);
    rotad.grant(1, 1, 100 * kMiB);
    EXPECT(next_of(rotad).kind == protocol::Kind::kRoom);
    rotad.somebody_waits(1, 1);
    EXPECT(next_of(rotad).kind == protocol::Kind::kGiveBack);
    EXPECT(next_of(rotad).kind == protocol::Kind::kWant);
    refusals = 0;
    rotad.somebody_waits(0);
    rotad.grant(2, 1, 100 * kMiB);
    EXPECT(next_of(rotad).kind == protocol::Kind::kRoom);
    rotad.promise(1024 * kMiB);
    program.join();
    EXPECT(result == api::CUDA_SUCCESS);
    runtime().monitor.at_exit();
  }));
}

TEST_CASE("without a rotad a context that is refused is refused") {
  CHECK(holds({}, [](FakeDriver& driver) {
    install(driver);
    refusals = 1;
    asked = 0;
    CUcontext made = nullptr;
    EXPECT(overrides::cuCtxCreate_v2(&made, 0, kGpu) == api::CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(asked == 1);
  }));
}
