// Random calls of the simulated driver: what an input's bytes say, on one thread or on several at once, with handles
// that are good, stale or made up. Nothing may crash, leak, hang, or stay behind when everything was given back.
//
// ROTA_FUZZ_TRACE=1 prints each call, for looking at one input: simgpu_fuzzer FILE.
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "tests/simgpu/fuzz/machine.h"
#include "tools/simgpu/driver/driver.h"

namespace rota::fuzz {
namespace {

using namespace std::chrono_literals;

constexpr int kGpus = 2;
constexpr size_t kCallsAtMost = 96;  // of one thread of an input

// Ends what nobody else would: a call that waits for a value which no thread will write, or for a kernel that never
// ends. The contexts are marked as destroyed, which is what work in streams looks at, and the input is over.
class Watch {
 public:
  Watch() {
    std::thread([this] { run(); }).detach();
  }
  void set(std::vector<std::unique_ptr<Machine>>* machines) {
    std::lock_guard lock(mutex_);
    machines_ = machines;
    seen_.clear();
    ending_ = machines == nullptr;
  }
  // What was marked lives again, so that it can be destroyed in order.
  void unmark() {
    std::lock_guard lock(mutex_);
    sim::driver().contexts.remove_if([](sim::Context& context) {
      context.destroyed.store(false);
      return false;
    });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait_for(lock, 100ms);
      if (machines_ == nullptr) continue;
      seen_.resize(machines_->size());
      for (size_t i = 0; i < machines_->size(); ++i) {
        Machine& machine = *(*machines_)[i];
        uint64_t now = machine.call_under_way();
        if (now != 0 && now == seen_[i]) end_waits();
        seen_[i] = now;
      }
    }
  }
  void end_waits() {
    for (auto& machine : *machines_) machine->rescued.store(true);
    sim::driver().contexts.remove_if([](sim::Context& context) {
      context.destroyed.store(true);
      return false;
    });
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Machine>>* machines_ = nullptr;
  std::vector<uint64_t> seen_;
  bool ending_ = false;
};

Watch& watch() {
  static auto* made = new Watch;
  return *made;
}

// NOLINTBEGIN(concurrency-mt-unsafe): before any thread
void prepare() {
  std::string state = "/tmp/rota-fuzz-simgpu-" + std::to_string(getpid());
  static std::string file = state;
  setenv("ROTA_SIM_STATE", state.c_str(), 1);
  setenv("ROTA_SIM_MEMORY", "64M", 1);
  setenv("ROTA_SIM_CONTEXT_BYTES", "1M", 1);
  setenv("ROTA_SIM_GPUS", "2", 1);
  setenv("ROTA_SIM_TIME_SCALE", "0", 1);
  if (const char* kernels = std::getenv("ROTA_FUZZ_KERNELS"); kernels == nullptr) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    std::string folder(path, length > 0 ? static_cast<size_t>(length) : 0);
    setenv("ROTA_SIM_KERNELS", (folder.substr(0, folder.rfind('/')) + "/libsimkernels.so").c_str(), 1);
  } else {
    setenv("ROTA_SIM_KERNELS", kernels, 1);
  }
  Machine::tracing = std::getenv("ROTA_FUZZ_TRACE") != nullptr;
  std::atexit([] { unlink(file.c_str()); });
}
// NOLINTEND(concurrency-mt-unsafe)

template <class Function, class... Arguments>
CUresult call(Machine& machine, Symbol symbol, Arguments... arguments) {
  return machine.call<Function>(symbol, arguments...);
}
#define FUZZ_CALL(machine, name, ...) call<name##_fn>(machine, Symbol::k_##name __VA_OPT__(, ) __VA_ARGS__)

// A context, a stream and so on to begin with, so that few bytes lead to calls that succeed.
void begin(Machine& machine, Learned& learned) {
  std::array<CUcontext, Machine::kElements> context{};
  FUZZ_CALL(machine, cuDevicePrimaryCtxRetain, context.data(), 0);
  machine.learn(context.data());
  FUZZ_CALL(machine, cuCtxSetCurrent, context[0]);
  std::array<CUstream, Machine::kElements> streams{};
  FUZZ_CALL(machine, cuStreamCreate, &streams[0], 0U);
  FUZZ_CALL(machine, cuStreamCreate, &streams[1], 1U);
  machine.learn(streams.data());
  std::array<CUevent, Machine::kElements> events{};
  FUZZ_CALL(machine, cuEventCreate, &events[0], 0U);
  machine.learn(events.data());
  std::array<CUgraph, Machine::kElements> graphs{};
  FUZZ_CALL(machine, cuGraphCreate, &graphs[0], 0U);
  machine.learn(graphs.data());
  std::array<CUdeviceptr, Machine::kElements> addresses{};
  FUZZ_CALL(machine, cuMemAlloc_v2, &addresses[0], size_t{1} << 16);
  FUZZ_CALL(machine, cuMemAllocManaged, &addresses[1], size_t{4} << 20, 1U);
  machine.learn_address(addresses.data());
  // Ranges and memory apart: steps of a size that few inputs would hit upon.
  constexpr size_t kStep = 2 << 20;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  std::array<CUdeviceptr, Machine::kElements> ranges{};
  FUZZ_CALL(machine, cuMemCreate, &handle, kStep, &properties, 0ULL);
  machine.learn_integer(Machine::CUmemGenericAllocationHandle_pool, &handle);
  FUZZ_CALL(machine, cuMemAddressReserve, ranges.data(), 2 * kStep, size_t{0}, CUdeviceptr{0}, 0ULL);
  FUZZ_CALL(machine, cuMemMap, ranges[0], kStep, size_t{0}, handle, 0ULL);
  machine.learn_address(ranges.data());
  std::array<CUmemoryPool, Machine::kElements> pools{};
  FUZZ_CALL(machine, cuDeviceGetDefaultMemPool, &pools[0], 0);
  machine.learn(pools.data());
  std::array<CUmodule, Machine::kElements> modules{};
  FUZZ_CALL(machine, cuModuleLoadData, &modules[0], static_cast<const void*>(Machine::kKernelImage));
  machine.learn(modules.data());
  std::array<CUfunction, Machine::kElements> functions{};
  const char* names[] = {"_Z4spinm", "_Z6reducePKjmPm", "_Z4fillPjmj", "_Z5saxpyifPKfPf"};
  for (size_t i = 0; i < std::size(names); ++i)
    FUZZ_CALL(machine, cuModuleGetFunction, &functions[i], modules[0], names[i]);
  machine.learn(functions.data());
}

void run(Machine& machine) {
  for (size_t i = 0; i < kCallsAtMost && !machine.empty() && !machine.rescued.load(); ++i) {
    chosen_call(machine.below(kChoices)).make(machine);
  }
}

// What the thread itself has, which a next input must not find.
void forget_thread() {
  sim::Driver::stack().clear();
  sim::Driver::thread_capture_mode() = CU_STREAM_CAPTURE_MODE_GLOBAL;
}

// Gives back everything that the input made. Handles of what is gone already are errors here, no more.
void end(Machine& machine, Learned& learned) {
  auto each = [&]<class Handle>(Handle, auto destroy) {
    for (void* handle : learned.handles[typeid(Handle)]) destroy(static_cast<Handle>(handle));
  };
  auto reset = [&] {
    for (int gpu = 0; gpu < kGpus; ++gpu) FUZZ_CALL(machine, cuDevicePrimaryCtxReset_v2, gpu);
  };
  // Contexts first: that ends what waits, and captures.
  reset();
  each(CUcontext{}, [&](CUcontext context) { FUZZ_CALL(machine, cuCtxDestroy_v2, context); });
  each(CUgraphExec{}, [&](CUgraphExec exec) { FUZZ_CALL(machine, cuGraphExecDestroy, exec); });
  each(CUgraph{}, [&](CUgraph graph) { FUZZ_CALL(machine, cuGraphDestroy, graph); });
  each(CUuserObject{}, [&](CUuserObject object) {
    for (int i = 0; i < 64 && FUZZ_CALL(machine, cuUserObjectRelease, object, 1U) == CUDA_SUCCESS; ++i) {
    }
  });
  each(CUlibrary{}, [&](CUlibrary library) { FUZZ_CALL(machine, cuLibraryUnload, library); });
  each(CUlinkState{}, [&](CUlinkState state) { FUZZ_CALL(machine, cuLinkDestroy, state); });

  // What belongs to no context.
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    CUcontext context = nullptr;
    FUZZ_CALL(machine, cuDevicePrimaryCtxRetain, &context, gpu);
    FUZZ_CALL(machine, cuCtxSetCurrent, context);
    for (uint64_t address : learned.addresses) {
      FUZZ_CALL(machine, cuMemUnmap, CUdeviceptr{address}, size_t{2} << 20);
      FUZZ_CALL(machine, cuMemAddressFree, CUdeviceptr{address}, size_t{4} << 20);
      CUdeviceptr base = 0;
      size_t size = 0;
      if (FUZZ_CALL(machine, cuMemGetAddressRange_v2, &base, &size, CUdeviceptr{address}) != CUDA_SUCCESS) continue;
      if (FUZZ_CALL(machine, cuMemUnmap, base, size) != CUDA_SUCCESS) FUZZ_CALL(machine, cuMemFree_v2, base);
    }
    FUZZ_CALL(machine, cuDeviceGraphMemTrim, gpu);
    CUmemoryPool pool = nullptr;
    if (FUZZ_CALL(machine, cuDeviceGetDefaultMemPool, &pool, gpu) != CUDA_SUCCESS) continue;
    FUZZ_CALL(machine, cuDeviceSetMemPool, gpu, pool);
    FUZZ_CALL(machine, cuMemPoolTrimTo, pool, size_t{0});
  }
  each(CUmemoryPool{}, [&](CUmemoryPool pool) { FUZZ_CALL(machine, cuMemPoolDestroy, pool); });
  for (uint64_t handle : learned.integers[Machine::CUmemGenericAllocationHandle_pool]) {
    for (int i = 0; i < 64 && FUZZ_CALL(machine, cuMemRelease, CUmemGenericAllocationHandle{handle}) == CUDA_SUCCESS;
         ++i) {
    }
  }
  for (int file : learned.files) close(file);
  reset();
}

// Nothing holds memory of the GPUs any more.
void check_memory() {
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    sim::MemoryUse use = sim::driver().state().use(gpu);
    if (use.plain == 0 && use.managed_resident == 0) continue;
    std::fprintf(stderr, "GPU %d still has %llu bytes of memory taken, and %llu of managed memory resident\n", gpu,
                 static_cast<unsigned long long>(use.plain), static_cast<unsigned long long>(use.managed_resident));
    abort();
  }
}

void run_threads(const uint8_t* bytes, size_t size, size_t threads, Learned& learned,
                 std::vector<std::unique_ptr<Machine>>& machines) {
  size_t part = size / threads;
  for (size_t i = 0; i < threads; ++i) {
    machines.push_back(std::make_unique<Machine>(learned, bytes + i * part, part, threads > 1));
  }
  begin(*machines[0], learned);
  watch().set(&machines);
  std::vector<std::thread> others;
  CUcontext context = sim::Driver::stack().empty() ? nullptr : sim::Driver::stack().back();
  for (size_t i = 1; i < threads; ++i) {
    others.emplace_back([&, i] {
      FUZZ_CALL(*machines[i], cuCtxSetCurrent, context);
      run(*machines[i]);
      forget_thread();
    });
  }
  run(*machines[0]);
  for (std::thread& other : others) other.join();
  forget_thread();
}

}  // namespace
}  // namespace rota::fuzz

extern "C" {
// Of the sanitizer, where there is one.
__attribute__((weak)) void __lsan_disable(void);
__attribute__((weak)) void __lsan_enable(void);
}

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  rota::fuzz::prepare();
  // What the driver makes once for the process is not what leaks are looked for in.
  if (__lsan_disable != nullptr) __lsan_disable();
  using rota::Symbol;
  auto* start = reinterpret_cast<rota::api::cuInit_fn*>(rota_sim_table[static_cast<size_t>(Symbol::k_cuInit)]);
  if (start(0) != rota::api::CUDA_SUCCESS) abort();
  if (__lsan_enable != nullptr) __lsan_enable();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace rota::fuzz;  // NOLINT(google-build-using-namespace)
  if (size < 2) return 0;
  // One input in four is for several threads.
  size_t threads = bytes[0] < 192 ? 1 : 2 + bytes[0] % 2;
  Learned learned;
  std::vector<std::unique_ptr<Machine>> machines;
  run_threads(bytes + 1, size - 1, threads, learned, machines);
  watch().set(nullptr);
  watch().unmark();
  {
    std::vector<std::unique_ptr<Machine>> last;
    machines.clear();
    last.push_back(std::make_unique<Machine>(learned, bytes, 0, false));
    watch().set(&last);
    end(*last[0], learned);
    watch().set(nullptr);
  }
  forget_thread();
  check_memory();
  return 0;
}
