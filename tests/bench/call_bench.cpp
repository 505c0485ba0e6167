// What a call costs through rota, against a direct call to the same driver function in the same process.
//
// Run by tests/bench/run under `rota run` on simgpu, with and without tracing. Direct calls go to the real driver's own
// address, found through a link of another name to the same file (the dlopen hook answers for libcuda's names); calls
// through rota go to the preloaded symbol. The two alternate in batches, so that drift of the machine hits both alike;
// what is printed is the mean of the paired differences with its 95% interval.
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "generated/driver_functions.h"
#include "runtime/trace/clock.h"

namespace {

using namespace rota;

constexpr int kPairs = 60;
constexpr int kWarmUpPairs = 5;

struct Paired {
  double direct_ns;
  double difference_ns;
  double half_interval_ns;  // of the 95% interval of the difference
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

template <typename Call>
double batch_ns(int calls, Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / calls;
}

// The middle half of the pairs: a batch that was preempted says nothing about the call.
std::vector<double> without_outliers(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto quarter = static_cast<std::ptrdiff_t>(values.size() / 4);
  return {values.begin() + quarter, values.end() - quarter};
}

template <typename Direct, typename Through>
Paired compare(int calls, Direct&& direct, Through&& through) {
  std::vector<double> differences, directs;
  for (int pair = -kWarmUpPairs; pair < kPairs; ++pair) {
    double a, b;
    if (pair % 2 == 0) {
      a = batch_ns(calls, direct);
      b = batch_ns(calls, through);
    } else {
      b = batch_ns(calls, through);
      a = batch_ns(calls, direct);
    }
    if (pair < 0) continue;
    directs.push_back(a);
    differences.push_back(b - a);
  }
  differences = without_outliers(differences);
  directs = without_outliers(directs);
  const double average = mean(differences);
  double squares = 0;
  for (double value : differences) squares += (value - average) * (value - average);
  const double deviation = std::sqrt(squares / static_cast<double>(differences.size() - 1));
  return {mean(directs), average, 1.96 * deviation / std::sqrt(static_cast<double>(differences.size()))};
}

void print(const char* what, const Paired& paired, double target_ns) {
  fmt::print("{:<42} direct {:7.2f} ns   through rota {:+7.2f} ± {:.2f} ns   ratio {:.2f}   target {:+.0f} ns  {}\n",
             what, paired.direct_ns, paired.difference_ns, paired.half_interval_ns,
             (paired.direct_ns + paired.difference_ns) / paired.direct_ns, target_ns,
             paired.difference_ns <= target_ns ? "met" : "MISSED");
}

[[noreturn]] void fail(const std::string& text) {
  fmt::print(stderr, "call_bench: {}\n", text);
  std::exit(1);
}

template <typename Function>
Function* symbol_in(void* handle, const char* name) {
  auto* address = reinterpret_cast<Function*>(dlsym(handle, name));
  if (address == nullptr) fail(fmt::format("no {}: run it through tests/bench/run", name));
  return address;
}

// What no tracer can be without: two time stamps around the direct call. This is not the time of two reads in a row,
// since the CPU overlaps them with the call, or cannot overlap calls across them.
template <typename Direct>
void print_time_stamps(int calls, Direct&& direct) {
  volatile std::uint64_t ticks = 0;
  const Paired paired = compare(calls, direct, [&] {
    ticks = trace::counter();
    direct();
    ticks = trace::counter();
  });
  fmt::print("{:<42} direct {:7.2f} ns   with them    {:+7.2f} ± {:.2f} ns\n", "  of it two time stamps",
             paired.direct_ns, paired.difference_ns, paired.half_interval_ns);
}

}  // namespace

int main() {
  const char* real_path = std::getenv("ROTA_REAL_LIBCUDA");
  if (real_path == nullptr) fail("ROTA_REAL_LIBCUDA is not set: run it through tests/bench/run");
  const auto alias = std::filesystem::temp_directory_path() / fmt::format("rota-bench-{}.so", getpid());
  std::filesystem::create_symlink(std::filesystem::canonical(real_path), alias);

  if (symbol_in<api::cuInit_fn>(RTLD_DEFAULT, "cuInit")(0) != api::CUDA_SUCCESS) fail("cuInit failed");
  void* real = dlopen(alias.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::filesystem::remove(alias);
  if (real == nullptr) fail(dlerror());

  api::CUcontext context = nullptr;
  api::CUdevice device = 0;
  if (symbol_in<api::cuDevicePrimaryCtxRetain_fn>(RTLD_DEFAULT, "cuDevicePrimaryCtxRetain")(&context, 0) !=
      api::CUDA_SUCCESS)
    fail("cuDevicePrimaryCtxRetain failed");
  symbol_in<api::cuCtxSetCurrent_fn>(RTLD_DEFAULT, "cuCtxSetCurrent")(context);

  const bool traced = std::getenv("ROTA_TRACE") != nullptr;
  auto* through_query = symbol_in<api::cuCtxGetDevice_fn>(RTLD_DEFAULT, "cuCtxGetDevice");
  auto* direct_query = symbol_in<api::cuCtxGetDevice_fn>(real, "cuCtxGetDevice");
  if (through_query == direct_query) fail("the preload is not in force");
  const int calls = 20'000;
  print(traced ? "traced query (cuCtxGetDevice)" : "query (cuCtxGetDevice)",
        compare(calls, [&] { direct_query(&device); }, [&] { through_query(&device); }), traced ? 25 : 2);
  if (traced) print_time_stamps(calls, [&] { direct_query(&device); });

  // A launch that the driver refuses at once: the gate does its whole work, the driver as little as possible.
  auto* through_launch = symbol_in<api::cuLaunchKernel_fn>(RTLD_DEFAULT, "cuLaunchKernel");
  auto* direct_launch = symbol_in<api::cuLaunchKernel_fn>(real, "cuLaunchKernel");
  const auto launch = [](auto* function) { return function(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); };
  if (launch(through_launch) != launch(direct_launch)) fail("rota changed a result");
  print(traced ? "traced gated call (cuLaunchKernel)" : "gated call, lease held (cuLaunchKernel)",
        compare(calls, [&] { launch(direct_launch); }, [&] { launch(through_launch); }), traced ? 30 : 5);
  if (traced) print_time_stamps(calls, [&] { launch(direct_launch); });
  if (traced) return 0;

  // An event that is no timing event, refused as well: before the program has made one of those, and after that.
  auto* through_record = symbol_in<api::cuEventRecord_fn>(RTLD_DEFAULT, "cuEventRecord");
  auto* direct_record = symbol_in<api::cuEventRecord_fn>(real, "cuEventRecord");
  const auto compare_records = [&](const char* what) {
    print(what, compare(calls, [&] { direct_record(nullptr, nullptr); }, [&] { through_record(nullptr, nullptr); }), 5);
  };
  compare_records("gated call (cuEventRecord)");
  api::CUevent event = nullptr;
  if (symbol_in<api::cuEventCreate_fn>(RTLD_DEFAULT, "cuEventCreate")(&event, 0) != api::CUDA_SUCCESS) {
    fail("cuEventCreate failed");
  }
  compare_records("  the same, where timing events exist");

  // Objects that are created and destroyed at once. There is no target, since the ledger's work is included; with an
  // account the figure is compared with that of a run without one.
  const auto print_pair = [](const char* what, auto make, auto end, auto direct_make, auto direct_end) {
    constexpr int kCalls = 500;
    const Paired paired = compare(kCalls, [&] { direct_end(direct_make()); }, [&] { end(make()); });
    fmt::print("{:<42} direct {:7.1f} ns   through rota {:+7.1f} ± {:.1f} ns\n", what, paired.direct_ns,
               paired.difference_ns, paired.half_interval_ns);
  };
  const auto allocate_in = [](void* from) {
    return [function = symbol_in<api::cuMemAlloc_v2_fn>(from, "cuMemAlloc_v2")] {
      api::CUdeviceptr address = 0;
      if (function(&address, 1 << 20) != api::CUDA_SUCCESS) fail("cuMemAlloc failed");
      return address;
    };
  };
  print_pair("cuMemAlloc, cuMemFree", allocate_in(RTLD_DEFAULT),
             symbol_in<api::cuMemFree_v2_fn>(RTLD_DEFAULT, "cuMemFree_v2"), allocate_in(real),
             symbol_in<api::cuMemFree_v2_fn>(real, "cuMemFree_v2"));
  const auto async_in = [](void* from) {
    return [function = symbol_in<api::cuMemAllocAsync_fn>(from, "cuMemAllocAsync")] {
      api::CUdeviceptr address = 0;
      if (function(&address, 1 << 10, nullptr) != api::CUDA_SUCCESS) fail("cuMemAllocAsync failed");
      return address;
    };
  };
  const auto free_async_in = [](void* from) {
    return [function = symbol_in<api::cuMemFreeAsync_fn>(from, "cuMemFreeAsync")](api::CUdeviceptr address) {
      function(address, nullptr);
    };
  };
  print_pair("cuMemAllocAsync, cuMemFreeAsync", async_in(RTLD_DEFAULT), free_async_in(RTLD_DEFAULT), async_in(real),
             free_async_in(real));
  const auto event_in = [](void* from) {
    return [function = symbol_in<api::cuEventCreate_fn>(from, "cuEventCreate")] {
      api::CUevent made = nullptr;
      if (function(&made, api::CU_EVENT_DISABLE_TIMING) != api::CUDA_SUCCESS) fail("cuEventCreate failed");
      return made;
    };
  };
  print_pair("cuEventCreate, cuEventDestroy", event_in(RTLD_DEFAULT),
             symbol_in<api::cuEventDestroy_v2_fn>(RTLD_DEFAULT, "cuEventDestroy_v2"), event_in(real),
             symbol_in<api::cuEventDestroy_v2_fn>(real, "cuEventDestroy_v2"));

  // Copies of four bytes, and the launch again: with contexts on one GPU and, where there is a second, on two, of which
  // the second one has done nothing but allocate, so that this process does not hold it.
  auto* through_copy = symbol_in<api::cuMemcpyDtoDAsync_v2_fn>(RTLD_DEFAULT, "cuMemcpyDtoDAsync_v2");
  auto* direct_copy = symbol_in<api::cuMemcpyDtoDAsync_v2_fn>(real, "cuMemcpyDtoDAsync_v2");
  auto* synchronize = symbol_in<api::cuCtxSynchronize_fn>(real, "cuCtxSynchronize");
  const api::CUdeviceptr memory = allocate_in(RTLD_DEFAULT)();
  constexpr int kCopies = 200;  // within what a GPU queues
  const auto compare_copies = [&](const char* what, double target_ns) {
    const auto copies = [&](auto* function) {
      return [&, function, left = kCopies]() mutable {
        function(memory, memory + 4096, 4, nullptr);
        if (--left != 0) return;
        synchronize();
        left = kCopies;
      };
    };
    print(what, compare(kCopies, copies(direct_copy), copies(through_copy)), target_ns);
  };
  compare_copies("copy (cuMemcpyDtoDAsync)", 60);
  api::CUcontext second = nullptr;
  if (symbol_in<api::cuDevicePrimaryCtxRetain_fn>(RTLD_DEFAULT, "cuDevicePrimaryCtxRetain")(&second, 1) !=
      api::CUDA_SUCCESS) {
    fmt::print("there is no second GPU\n");
    return 0;
  }
  symbol_in<api::cuCtxSetCurrent_fn>(RTLD_DEFAULT, "cuCtxSetCurrent")(second);
  allocate_in(RTLD_DEFAULT)();
  symbol_in<api::cuCtxSetCurrent_fn>(RTLD_DEFAULT, "cuCtxSetCurrent")(context);
  compare_copies("  the same, with contexts on two GPUs", 60);
  print("launch, with contexts on two GPUs",
        compare(calls, [&] { launch(direct_launch); }, [&] { launch(through_launch); }), 15);
  // Not in the legacy stream, whose GPU is that of the current context: here the driver need not be asked for it.
  api::CUstream stream = nullptr;
  if (symbol_in<api::cuStreamCreate_fn>(RTLD_DEFAULT, "cuStreamCreate")(&stream, 0) != api::CUDA_SUCCESS) {
    fail("cuStreamCreate failed");
  }
  const auto in_stream = [&](auto* function) {
    return [=] { function(nullptr, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr); };
  };
  print("  the same in a stream", compare(calls, in_stream(direct_launch), in_stream(through_launch)), 15);
  return 0;
}
