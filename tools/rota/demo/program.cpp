// What `rota demo` runs: a small CUDA program like any other, which knows nothing of rota. It needs only the driver's
// libcuda.so.1, and its kernel is PTX text.
//
//   rota-demo look --words W
//   rota-demo work --bytes B --words W --steps S --launches L --start X [--within M] [--beside R,W]
//
// `look` says which GPU there is, and how many steps for each of W words keep it busy for some milliseconds. `work`
// takes B bytes, fills them with X, lets the kernel go over W words spread over all of them, L times S steps each, and
// compares every word with what it must be. With --within it launches no more after M milliseconds, however many are
// left, so that a busy machine does not make it longer. With --beside, the two ends of a pipe that all copies have
// open, it begins once each copy has its memory or has ended: a refusal then is one with all others on the GPU.
//
// Each prints one line of JSON and ends with 0. A failure, or a wrong word, is one line and exit code 1; out of memory
// is exit code 2.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "generated/driver_functions.h"
#include "generated/driver_types.h"
#include "tools/rota/demo/kernel.h"

namespace {

using namespace rota::api;  // NOLINT(google-build-using-namespace): the names are CUDA's own
using rota::demo::Steps;
using Clock = std::chrono::steady_clock;

// A driver that hangs at its start is reported as this signal's end (SIGALRM).
constexpr unsigned kLookSeconds = 30;
constexpr unsigned kBlockThreads = 256;
constexpr double kLaunchSeconds = 0.005;

[[noreturn]] void end(int code, const std::string& line) {
  std::fprintf(stderr, "%s\n", line.c_str());
  std::exit(code);  // NOLINT(concurrency-mt-unsafe)
}

// Under rota a library of the driver's name is already loaded. If the loader does not find the driver, this program
// uses the same variable as rota.
void* open_driver() {
  if (void* there = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) return there;
  const char* named = std::getenv("ROTA_REAL_LIBCUDA");
  const bool is_named = named != nullptr && *named != '\0';
  if (void* opened = dlopen(is_named ? named : "libcuda.so.1", RTLD_NOW)) return opened;
  end(1, std::string("no CUDA driver: ") + dlerror());
}

template <class Function>
Function* function(const char* name) {
  static void* const driver = open_driver();
  void* found = dlsym(driver, name);
  if (found == nullptr) end(1, std::string("the CUDA driver has no ") + name);
  return reinterpret_cast<Function*>(found);
}
#define CUDA(name) function<name##_fn>(#name)

std::string error_name(CUresult result) {
  const char* name = nullptr;
  CUDA(cuGetErrorName)(result, &name);
  return name != nullptr ? name : "error " + std::to_string(static_cast<int>(result));
}

void check(CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return;
  end(result == CUDA_ERROR_OUT_OF_MEMORY ? 2 : 1, what + ": " + error_name(result));
}

struct Gpu {
  CUdevice device = 0;
  CUfunction kernel = nullptr;

  Gpu() {
    check(CUDA(cuInit)(0), "cuInit");
    check(CUDA(cuDeviceGet)(&device, 0), "cuDeviceGet");
    CUcontext context = nullptr;
    check(CUDA(cuDevicePrimaryCtxRetain)(&context, device), "cuDevicePrimaryCtxRetain");
    check(CUDA(cuCtxSetCurrent)(context), "cuCtxSetCurrent");
    CUmodule module = nullptr;
    check(CUDA(cuModuleLoadData)(&module, rota::demo::kKernelText), "cuModuleLoadData");
    check(CUDA(cuModuleGetFunction)(&kernel, module, rota::demo::kKernelName), "cuModuleGetFunction");
  }

  // Goes over `words` words, `stride` words apart, and waits for it. Returns the seconds that it took.
  double run(CUdeviceptr data, std::uint64_t words, std::uint64_t stride, std::uint32_t steps) const {
    void* parameters[] = {&data, &words, &stride, &steps};
    const auto blocks = static_cast<unsigned>((words + kBlockThreads - 1) / kBlockThreads);
    const auto begin = Clock::now();
    check(CUDA(cuLaunchKernel)(kernel, blocks, 1, 1, kBlockThreads, 1, 1, 0, nullptr, parameters, nullptr),
          "cuLaunchKernel");
    check(CUDA(cuCtxSynchronize)(), "cuCtxSynchronize");
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
};

std::string quoted(const char* text) {
  std::string result = "\"";
  for (const char* at = text; *at != '\0'; ++at) {
    if (*at == '"' || *at == '\\') result += '\\';
    if (static_cast<unsigned char>(*at) >= ' ') result += *at;
  }
  return result + '"';
}

int look(std::uint64_t words) {
  alarm(kLookSeconds);
  const Gpu gpu;
  char name[256] = {};
  int version = 0;
  size_t free = 0;
  size_t total = 0;
  check(CUDA(cuDeviceGetName)(name, sizeof name, gpu.device), "cuDeviceGetName");
  check(CUDA(cuDriverGetVersion)(&version), "cuDriverGetVersion");
  check(CUDA(cuMemGetInfo_v2)(&free, &total), "cuMemGetInfo");
  CUdeviceptr data = 0;
  check(CUDA(cuMemAlloc_v2)(&data, words * sizeof(std::uint32_t)), "cuMemAlloc");
  check(CUDA(cuMemsetD32_v2)(data, 0, words), "cuMemsetD32");
  std::uint32_t steps = 16;
  gpu.run(data, words, 1, steps);  // the first one takes longer
  double seconds = gpu.run(data, words, 1, steps);
  // Doubled until a launch is long enough to measure; with a limit, for GPUs where nothing takes time.
  constexpr std::uint32_t kMostSteps = 1 << 20;
  while (seconds < kLaunchSeconds && steps < kMostSteps) {
    const double more = std::clamp(kLaunchSeconds / std::max(seconds, 1e-9), 1.5, 8.0);
    steps = std::min(kMostSteps, static_cast<std::uint32_t>(steps * more));
    seconds = gpu.run(data, words, 1, steps);
  }
  check(CUDA(cuMemFree_v2)(data), "cuMemFree");
  std::printf(R"({"gpu":%s,"driver":%d,"free":%zu,"total":%zu,"steps":%u,"seconds":%.6f})"
              "\n",
              quoted(name).c_str(), version, free, total, steps, seconds);
  return 0;
}

struct Work {
  std::uint64_t bytes = 0;
  std::uint64_t words = 0;
  std::uint64_t steps = 0;
  std::uint64_t launches = 0;
  std::uint64_t start = 0;
  std::uint64_t within = 0;  // milliseconds; 0: as long as it takes
  int read_end = -1;
  int write_end = -1;
};

// Waits until no process has the writing end open: each copy closes it here, or has ended.
void wait_for_the_others(const Work& work) {
  if (work.read_end < 0) return;
  close(work.write_end);
  char nothing = 0;
  while (read(work.read_end, &nothing, 1) > 0) {
  }
  close(work.read_end);
}

int do_work(const Work& work) {
  const auto begin = Clock::now();
  const Gpu gpu;
  const std::uint64_t all = work.bytes / sizeof(std::uint32_t);
  const std::uint64_t words = std::min(work.words, all);
  const std::uint64_t stride = all / words;
  CUdeviceptr data = 0;
  check(CUDA(cuMemAlloc_v2)(&data, work.bytes), "cuMemAlloc of " + std::to_string(work.bytes >> 20) + " MiB");
  wait_for_the_others(work);
  const auto start = static_cast<std::uint32_t>(work.start);
  check(CUDA(cuMemsetD32_v2)(data, start, all), "cuMemsetD32");
  std::uint64_t launched = 0;
  const auto is_late = [&, first = Clock::now()] {
    return work.within != 0 && Clock::now() - first >= std::chrono::milliseconds(work.within);
  };
  while (launched < work.launches && (launched == 0 || !is_late())) {
    gpu.run(data, words, stride, static_cast<std::uint32_t>(work.steps));
    ++launched;
  }
  const std::uint32_t mixed = Steps(work.steps * launched).from(start);
  constexpr std::uint64_t kPiece = std::uint64_t{4} << 20;  // words
  std::vector<std::uint32_t> piece(std::min(kPiece, all));
  std::uint64_t wrong = 0;
  for (std::uint64_t first = 0; first < all; first += kPiece) {
    const std::uint64_t count = std::min(kPiece, all - first);
    check(CUDA(cuMemcpyDtoH_v2)(piece.data(), data + first * sizeof(std::uint32_t), count * sizeof(std::uint32_t)),
          "cuMemcpyDtoH");
    // The words that the kernel computes are `stride` apart, from the first word on.
    std::uint64_t next = (first + stride - 1) / stride * stride;
    for (std::uint64_t i = 0; i < count; ++i) {
      const bool touched = first + i == next && next / stride < words;
      if (touched) next += stride;
      wrong += piece[i] != (touched ? mixed : start) ? 1 : 0;
    }
  }
  check(CUDA(cuMemFree_v2)(data), "cuMemFree");
  if (wrong != 0) end(1, std::to_string(wrong) + " of " + std::to_string(all) + " words are wrong");
  std::printf(R"({"pid":%d,"bytes":%llu,"launches":%llu,"checked":%llu,"seconds":%.6f})"
              "\n",
              getpid(), static_cast<unsigned long long>(work.bytes), static_cast<unsigned long long>(launched),
              static_cast<unsigned long long>(all), std::chrono::duration<double>(Clock::now() - begin).count());
  return 0;
}

constexpr const char* kUsage =
    "usage: rota-demo look --words W | work --bytes B --words W --steps S --launches L --start X [--within M] "
    "[--beside R,W]; "
    "`rota "
    "demo` runs it";

std::uint64_t number(const char* text) {
  std::uint64_t value = 0;
  const char* stop = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, stop, value);
  if (error != std::errc{} || at != stop) end(1, std::string("'") + text + "' is no number; " + kUsage);
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  Work work;
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--bytes") {
      work.bytes = number(argv[i + 1]);
    } else if (option == "--words") {
      work.words = number(argv[i + 1]);
    } else if (option == "--steps") {
      work.steps = number(argv[i + 1]);
    } else if (option == "--launches") {
      work.launches = number(argv[i + 1]);
    } else if (option == "--start") {
      work.start = number(argv[i + 1]);
    } else if (option == "--within") {
      work.within = number(argv[i + 1]);
    } else if (option == "--beside") {
      if (std::sscanf(argv[i + 1], "%d,%d", &work.read_end, &work.write_end) != 2) end(1, kUsage);
    } else {
      end(1, kUsage);
    }
  }
  const bool works = command == "work" && work.bytes >= sizeof(std::uint32_t);
  if (argc % 2 != 0 || work.words == 0 || (command != "look" && !works)) end(1, kUsage);
  return works ? do_work(work) : look(work.words);
}
