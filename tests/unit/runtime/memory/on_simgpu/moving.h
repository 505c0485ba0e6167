// What tests of moving extents need: driver calls that fail or do something else first, and a helper that moves extents
// as the monitor does.
#pragma once

#include <catch2/catch.hpp>

#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "generated/driver_real.h"
#include "tests/unit/runtime/memory/fake_turns.h"
#include "tests/unit/runtime/memory/on_simgpu/machine.h"

namespace rota::test {

// Seconds that a child may take; what hangs is ended by a signal.
inline constexpr unsigned kPatience = 20;

// --- functions of the driver that fail, or do something else first

inline constexpr int kAlways = -1;
inline std::map<Symbol, int> fails_at;  // which call from now on fails, once: 1 is the next; 0: none
inline CUresult fails_with = CUDA_ERROR_UNKNOWN;
inline std::function<void(Symbol symbol)> before = [](Symbol) {};

// The driver's function, made to fail as set above; null for a function that no header declares.
void* failing(Symbol symbol, void* simulated);

// While not null: how often each function of the driver is called, by the program or by rota. For one thread.
inline std::map<Symbol, int>* counted = nullptr;

inline void check(const std::function<void()>& program, std::uint64_t gpu_bytes = kGpuBytes) {
  const Machine machine{.mode = Mode::kSwap, .limit = "", .replace = failing, .neighbour = {}, .gpu_bytes = gpu_bytes};
  const std::string report = on_simgpu(machine, [&] {
    alarm(kPatience);
    runtime().memory.swap().host().set_left([] { return std::uint64_t{1} << 40; });
    program();
  });
  CHECK(report == "");
}

// --- moving

using Swap = memory::SwapBackend;

// Of a process whose gate is closed.
inline FakeTurns no_turn{false};

inline Swap& swap() {
  return runtime().memory.swap();
}

struct Carrier {
  explicit Carrier(CUcontext where) : context(where), life(runtime().contexts.life_of(where)) {
    EXPECT_OK(real::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  Swap::Move mover() {
    return {.within = [this](const std::function<void()>& step) { return within(step); },
            .stopping = [] { return false; },
            .idle = [this] { return idle; },
            .while_alive =
                [this](const std::function<void()>& step) {
                  looks_again = true;
                  begins();
                  looks_again = false;
                  return runtime().contexts.while_alive(life, step);
                },
            .stream = stream,
            .context = looks ? context : nullptr};
  }
  // As the monitor does it: tries the lock under which contexts end.
  bool within(const std::function<void()>& step) {
    for (;;) {
      begins();
      const auto how = runtime().contexts.within(life, step);
      if (how != driver::Contexts::Within::kBusy) return how == driver::Contexts::Within::kRan;
      std::this_thread::yield();
    }
  }
  CUcontext context;
  driver::ContextLife life;
  CUstream stream = nullptr;
  bool idle = true;                      // the process: no work of it runs
  bool looks = false;                    // at what memory holds
  std::function<void()> begins = [] {};  // in front of each step
  bool looks_again = false;  // within `begins`: the step only checks whether a copy has ended, perhaps once more
};

inline constexpr std::uint64_t kAll = UINT64_MAX / 2;

inline CUdeviceptr allocate(std::uint64_t bytes, unsigned char pattern) {
  CUdeviceptr address = 0;
  EXPECT_OK(cu.cuMemAlloc_v2(&address, bytes));
  EXPECT_OK(cu.cuMemsetD8_v2(address, pattern, bytes));
  EXPECT_OK(cu.cuCtxSynchronize());
  return address;
}

inline void expect_pattern(CUdeviceptr address, std::uint64_t bytes, unsigned char pattern, const std::string& when) {
  const std::vector<unsigned char> expected(bytes, pattern);
  std::vector<unsigned char> seen(bytes, static_cast<unsigned char>(~pattern));
  const CUresult result = cu.cuMemcpyDtoH_v2(seen.data(), address, bytes);
  if (result != CUDA_SUCCESS) return note(fmt::format("{}: reading answers {}", when, static_cast<int>(result)));
  if (std::memcmp(seen.data(), expected.data(), bytes) != 0) note(fmt::format("{}: {} bytes are wrong", when, bytes));
}

inline std::size_t free_on_gpu() {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_OK(real::cuMemGetInfo_v2(&free, &total));
  return free;
}

}  // namespace rota::test
