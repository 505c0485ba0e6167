// A context that ends, or is reset, while the monitor moves memory in it.
#include <catch2/catch.hpp>

#include <mutex>
#include <set>

#include "generated/driver_real.h"
#include "runtime/monitor/bring_back.h"
#include "tests/unit/runtime/monitor/mapping_driver.h"
#include "tests/unit/runtime/monitor/turning_program.h"

using namespace rota;
using namespace rota::test;

namespace {

constexpr std::uint64_t kBytes = 64 * kMega;

struct Swapping : FakeRotad {
  Swapping() { keep_limits(); }
  void wait_for(Kind kind) {
    while (next().kind != kind) {
    }
  }
};

// A driver that copies at once, and says which streams there are.
std::mutex streams_mutex;
std::set<api::CUstream> streams;
std::atomic<int> copies;
std::atomic<int> dead_streams;  // uses of one that is no more
std::atomic<const std::function<void()>*> when_copied;
std::atomic<const std::function<void()>*> when_left;

void copies_at_once(FakeDriver& driver) {
  maps(driver);
  copies = 0;
  dead_streams = 0;
  when_copied = nullptr;
  when_left = nullptr;
  streams.clear();
  driver.set<api::cuStreamCreate_fn>(Symbol::k_cuStreamCreate, [](api::CUstream* stream, unsigned) {
    static std::uint64_t last = 0x9000;
    const std::lock_guard lock(streams_mutex);
    *stream = reinterpret_cast<api::CUstream>(last += 16);
    streams.insert(*stream);
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuStreamDestroy_v2_fn>(Symbol::k_cuStreamDestroy_v2, [](api::CUstream stream) {
    const std::lock_guard lock(streams_mutex);
    if (streams.erase(stream) == 0) ++dead_streams;
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuStreamSynchronize_fn>(Symbol::k_cuStreamSynchronize, [](api::CUstream stream) {
    const std::lock_guard lock(streams_mutex);
    if (!streams.contains(stream)) ++dead_streams;
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuMemcpyDtoHAsync_v2_fn>(Symbol::k_cuMemcpyDtoHAsync_v2, [](void*, auto, auto, api::CUstream stream) {
    {
      const std::lock_guard lock(streams_mutex);
      if (!streams.contains(stream)) ++dead_streams;
    }
    ++copies;
    if (const auto* const call = when_copied.load(); call != nullptr) (*call)();
    return api::CUDA_SUCCESS;
  });
  // The monitor's last call in a step.
  static api::cuCtxPopCurrent_v2_fn* pop = nullptr;
  pop = reinterpret_cast<api::cuCtxPopCurrent_v2_fn*>(
      real::table[static_cast<std::size_t>(Symbol::k_cuCtxPopCurrent_v2)]);
  driver.set<api::cuCtxPopCurrent_v2_fn>(Symbol::k_cuCtxPopCurrent_v2, [](api::CUcontext* context) {
    const api::CUresult result = pop(context);
    if (const auto* const call = when_left.load(); call != nullptr) (*call)();
    return result;
  });
}

}  // namespace

TEST_CASE(
    "memory is evicted in the next context where the one in which it was being evicted is reset, and nothing has "
    "failed") {
  Swapping rotad;
  std::atomic<bool> once{false};
  std::atomic<std::uint64_t> fixed{0};
  std::function<void()> look;  // by the monitor, at each copy
  std::function<void()> call;  // by the monitor, as if a thread of the program's made it between two of its steps
  Program program(memory::Choice::kSwap, true, copies_at_once);
  program.launch();
  rotad.wait_for(Kind::kWant);
  rotad.grant(1, 1, 1024 * kMega);
  program.launcher.join();
  program.driver.finished = UINT64_MAX;
  REQUIRE(eventually([&] { return !program.gate.closed(); }));
  REQUIRE(program.memory.swap().serves(0));
  api::CUdeviceptr address = 0;
  REQUIRE(program.memory.swap().allocate({nullptr, 0}, &address, kBytes) == api::CUDA_SUCCESS);  // ends with no context
  rotad.somebody_waits(1);
  rotad.wait_for(Kind::kGiveBack);
  rotad.grant(0, 0);
  rotad.somebody_waits(0);
  REQUIRE(eventually([&] { return rotad.usage().gpus[0].fixed_bytes.load() == 0; }));
  call = [&] {
    if (copies.load() == 0 || once.exchange(true)) return;
    {
      const std::lock_guard lock(streams_mutex);
      streams.clear();
    }
    program.driver.reset(program.context);
    program.contexts.begin_anew(program.context);
  };
  look = [&] { fixed += rotad.usage().gpus[0].fixed_for_now_bytes.load(); };
  when_copied = &look;
  when_left = &call;
  rotad.ask_for(kBytes);
  CHECK(eventually([&] { return program.memory.swap().out_bytes(0) == kBytes; }));
  CHECK(once.load());
  CHECK(copies.load() >= 2);
  CHECK(fixed.load() == 0);
  CHECK(dead_streams.load() == 0);
  program.monitor.at_exit();
}

TEST_CASE("memory of a context that has failed is released, and not that of the next one that has its handle") {
  FakeDriver driver;
  copies_at_once(driver);
  driver.device_bytes = 1024 * kMega;
  gate::Gate gate;
  driver::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory(ledger, {.backend = memory::Choice::kSwap, .limit_bytes = UINT64_MAX, .move_out = true});
  const api::CUcontext context = driver.enter_context(0);
  contexts.add(context, 0, true);
  api::CUdeviceptr address = 0;
  REQUIRE(memory.swap().serves(0));
  REQUIRE(memory.swap().allocate({context, 0}, &address, kBytes) == api::CUDA_SUCCESS);
  static std::atomic<bool> fails;
  fails = true;
  driver.set<api::cuStreamQuery_fn>(Symbol::k_cuStreamQuery, [](api::CUstream) {
    return fails.load() ? api::CUDA_ERROR_ILLEGAL_ADDRESS : api::CUDA_SUCCESS;
  });
  // While it is released, a program's thread cannot have ended the context and made another one.
  static std::atomic<driver::Contexts*> looked_at;
  static std::atomic<int> beside;
  looked_at = &contexts;
  beside = 0;
  driver.set<api::cuMemUnmap_fn>(Symbol::k_cuMemUnmap, [](api::CUdeviceptr, std::size_t) {
    std::thread([] {
      if (looked_at.load()->while_all_live([] {})) ++beside;
    }).join();
    return api::CUDA_SUCCESS;
  });
  const monitor::Left left =
      monitor::swap_out(contexts, memory, {0, kBytes}, [](int) { return memory::Exchange{}; }, [] { return false; });
  CHECK(left.bytes == kBytes);
  CHECK(copies.load() == 0);
  CHECK(beside.load() == 0);
}
