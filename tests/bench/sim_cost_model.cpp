// Measures simgpu's cost model as a benchmark would measure a GPU, through the driver API, and compares it with what
// was measured on an H200 (driver 580.159.04). Half of the figures went into profiles/h200.toml (fitted),
// the other half only the model knows (judged). Prints one table and fails if a ratio is outside of 0.85 to 1.15.
//
//   ROTA_SIM_CLOCK=virtual ROTA_SIM_KERNELS=…/libsimkernels.so sim_cost_model …/libcuda.so.1
//
// On a virtual clock one process has it all: two processes are two contexts. With --processes the figures of two
// processes are measured with two, on the real clock (set ROTA_SIM_TIME_SCALE to 50 or more: sleeping is not exact).
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "generated/driver_functions.h"
#include "generated/driver_types.h"

namespace {

using namespace rota::api;  // NOLINT(google-build-using-namespace)

constexpr size_t kMega = size_t{1} << 20;
constexpr size_t kGiga = size_t{1} << 30;
constexpr const char* kImage =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry _Z4spinm()\n{\n  ret;\n}\n"
    ".visible .entry _Z8memtouchPjmmjS_()\n{\n  ret;\n}\n";

void* library = nullptr;

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "sim_cost_model: %s gave %d\n", what, static_cast<int>(result));
  std::_Exit(1);
}

void* symbol(const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "sim_cost_model: the driver has no %s\n", name);
    std::_Exit(1);
  }
  return found;
}

#define CU(name) reinterpret_cast<name##_fn*>(symbol(#name))
#define OK(name, ...) check(CU(name)(__VA_ARGS__), #name)

class Stream {
 public:
  Stream() {
    OK(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
    OK(cuEventCreate, &begin_, CU_EVENT_DEFAULT);
    OK(cuEventCreate, &end_, CU_EVENT_DEFAULT);
  }
  CUstream handle() const { return stream_; }
  void begin() { OK(cuEventRecord, begin_, stream_); }
  void end() { OK(cuEventRecord, end_, stream_); }
  // Seconds from begin() to end(), once both are over.
  double seconds() const {
    OK(cuEventSynchronize, end_);
    float milliseconds = 0;
    OK(cuEventElapsedTime, &milliseconds, begin_, end_);
    return static_cast<double>(milliseconds) / 1e3;
  }
  double time(const std::function<void()>& work) {
    begin();
    work();
    end();
    return seconds();
  }

 private:
  CUstream stream_ = nullptr;
  CUevent begin_ = nullptr;
  CUevent end_ = nullptr;
};

// A context of its own with what the measurements need. Current when made.
struct Bench {
  CUcontext context = nullptr;
  CUfunction spin = nullptr;
  CUfunction memtouch = nullptr;
  CUdeviceptr mismatches = 0;
  CUdeviceptr device = 0;
  void* pinned = nullptr;
  static constexpr size_t kBytes = 64 * kMega;

  Bench() {
    CUctxCreateParams none{};
    OK(cuCtxCreate_v4, &context, &none, 0, 0);
    CUmodule module = nullptr;
    OK(cuModuleLoadData, &module, kImage);
    OK(cuModuleGetFunction, &spin, module, "_Z4spinm");
    OK(cuModuleGetFunction, &memtouch, module, "_Z8memtouchPjmmjS_");
    OK(cuMemAlloc_v2, &mismatches, 4096);
    OK(cuMemAlloc_v2, &device, kBytes);
    OK(cuMemHostAlloc, &pinned, kBytes, 0);
  }
  void use() const { OK(cuCtxSetCurrent, context); }

  void launch_spin(CUstream stream, unsigned long nanoseconds) const {
    void* parameters[] = {&nanoseconds};
    OK(cuLaunchKernel, spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
  }
  // Reads and writes so many bytes.
  void launch_touch(CUstream stream, CUdeviceptr memory, size_t bytes) const {
    unsigned long words = bytes / sizeof(unsigned);
    unsigned long stride = 1024;
    unsigned expected = 0;
    CUdeviceptr wrong = mismatches;
    void* parameters[] = {&memory, &words, &stride, &expected, &wrong};
    OK(cuLaunchKernel, memtouch, 132, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
  }
};

struct Row {
  const char* what;
  const char* unit;
  double measured;
  double simulated;
  bool judged;
  const char* source;
};

class Managed {
 public:
  explicit Managed(size_t bytes) { OK(cuMemAllocManaged, &address_, bytes, CU_MEM_ATTACH_GLOBAL); }
  ~Managed() { OK(cuMemFree_v2, address_); }
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;
  CUdeviceptr address() const { return address_; }

 private:
  CUdeviceptr address_ = 0;
};

void prefetch(CUdeviceptr memory, size_t bytes, bool to_device, CUstream stream) {
  CUmemLocation where{};
  where.type = to_device ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
  OK(cuMemPrefetchAsync_v2, memory, bytes, where, 0, stream);
}

constexpr int kCopies = 8;

double copy_rate(const Bench& bench, Stream& stream, bool to_device, void* host) {
  double seconds = stream.time([&] {
    for (int count = 0; count < kCopies; ++count) {
      if (to_device) {
        OK(cuMemcpyHtoDAsync_v2, bench.device, host, Bench::kBytes, stream.handle());
      } else {
        OK(cuMemcpyDtoHAsync_v2, host, bench.device, Bench::kBytes, stream.handle());
      }
    }
  });
  return kCopies * static_cast<double>(Bench::kBytes) / seconds / 1e9;
}

// Both directions at once; each in the context of its bench. GB/s in sum.
double duplex(const Bench& down, const Bench& up) {
  down.use();
  Stream in;
  up.use();
  Stream out;
  down.use();
  in.begin();
  up.use();
  out.begin();
  for (int count = 0; count < kCopies; ++count) {
    down.use();
    OK(cuMemcpyHtoDAsync_v2, down.device, down.pinned, Bench::kBytes, in.handle());
    up.use();
    // The second half of one buffer pair: two directions never touch the same bytes.
    OK(cuMemcpyDtoHAsync_v2, up.pinned, up.device, Bench::kBytes, out.handle());
  }
  down.use();
  in.end();
  up.use();
  out.end();
  double bytes = kCopies * static_cast<double>(Bench::kBytes);
  double sum = 0;
  down.use();
  sum += bytes / in.seconds();
  up.use();
  sum += bytes / out.seconds();
  return sum / 1e9;
}

// Kernels per second of all the contexts together.
double kernel_rate(const std::vector<const Bench*>& benches, int kernels,
                   const std::function<void(const Bench&, CUstream)>& launch) {
  std::vector<Stream> streams;
  for (const Bench* bench : benches) {
    bench->use();
    streams.emplace_back();
  }
  for (size_t index = 0; index < benches.size(); ++index) {
    benches[index]->use();
    streams[index].begin();
    for (int count = 0; count < kernels; ++count) launch(*benches[index], streams[index].handle());
    streams[index].end();
  }
  double longest = 0;
  for (size_t index = 0; index < benches.size(); ++index) {
    benches[index]->use();
    longest = std::max(longest, streams[index].seconds());
  }
  return kernels * static_cast<double>(benches.size()) / longest;
}

constexpr unsigned long kComputeKernel = 48'000;  // with its launch some 52 us, as 19 180 kernels/s alone
constexpr int kKernels = 2000;

void compute(const Bench& bench, CUstream stream) {
  bench.launch_spin(stream, kComputeKernel);
}
void bandwidth(const Bench& bench, CUstream stream) {
  bench.launch_touch(stream, bench.device, Bench::kBytes);
}

std::vector<Row> measure() {
  std::vector<Row> rows;
  Bench other;
  Bench bench;
  Stream stream;
  double kilo = 1e-9;
  void* pageable = std::malloc(Bench::kBytes);
  std::memset(pageable, 1, Bench::kBytes);
  std::memset(bench.pinned, 1, Bench::kBytes);
  std::memset(other.pinned, 1, Bench::kBytes);
  copy_rate(bench, stream, true, bench.pinned);

  rows.push_back(
      {"pinned copy, host to device", "GB/s", 55.4, copy_rate(bench, stream, true, bench.pinned), false, ""});
  rows.push_back(
      {"pinned copy, device to host", "GB/s", 55.1, copy_rate(bench, stream, false, bench.pinned), false, ""});
  rows.push_back({"pageable copy, host to device", "GB/s", 8.5, copy_rate(bench, stream, true, pageable), false, ""});
  rows.push_back({"pageable copy, device to host", "GB/s", 16.4, copy_rate(bench, stream, false, pageable), false, ""});
  std::free(pageable);
  for (bool down : {true, false}) {
    constexpr size_t kSmall = 64 << 10;
    constexpr int kCount = 200;
    double each = stream.time([&] {
      for (int count = 0; count < kCount; ++count) {
        if (down) {
          OK(cuMemcpyHtoDAsync_v2, bench.device, bench.pinned, kSmall, stream.handle());
        } else {
          OK(cuMemcpyDtoHAsync_v2, bench.pinned, bench.device, kSmall, stream.handle());
        }
      }
    }) / kCount;
    rows.push_back(
        {down ? "pinned copy of 64 KiB, host to device, queued" : "pinned copy of 64 KiB, device to host, queued", "us",
         down ? 3.698 : 3.048, each * 1e6, false, ""});
  }

  const size_t bytes = 128 * kMega;
  const double per_giga = static_cast<double>(kGiga) / static_cast<double>(bytes) * 1e3;
  auto rate = [&](double seconds) { return static_cast<double>(bytes) / seconds * kilo; };
  {
    Managed fresh(bytes);
    double seconds = stream.time([&] { bench.launch_touch(stream.handle(), fresh.address(), bytes); });
    rows.push_back({"managed: first touch by a kernel", "ms/GiB", 54, seconds * per_giga, false, ""});
    seconds = stream.time([&] { bench.launch_touch(stream.handle(), fresh.address(), bytes); });
    double again = 2 * static_cast<double>(bytes) / seconds * kilo;
    rows.push_back({"kernel bandwidth, resident managed memory", "GB/s", 3936, again, true, "equal to plain memory's"});
    seconds = stream.time([&] { prefetch(fresh.address(), bytes, false, stream.handle()); });
    rows.push_back(
        {"managed: prefetch to the host (eviction)", "GB/s", 16.0, rate(seconds), true, "pageable copies' rate"});
    seconds = stream.time([&] { prefetch(fresh.address(), bytes, true, stream.handle()); });
    rows.push_back({"managed: prefetch from the host", "GB/s", 50.3, rate(seconds), false, ""});
    prefetch(fresh.address(), bytes, false, stream.handle());
    seconds = stream.time([&] { bench.launch_touch(stream.handle(), fresh.address(), bytes); });
    rows.push_back({"managed: faulted in by a kernel", "GB/s", 10.0, rate(seconds), true,
                    "first touch + copy + a copy's fixed cost per 64 KiB"});
    seconds =
        stream.time([&] { OK(cuMemcpyHtoDAsync_v2, fresh.address(), bench.pinned, Bench::kBytes, stream.handle()); });
    rows.push_back({"pinned copy into managed memory", "GB/s", 51.4,
                    static_cast<double>(Bench::kBytes) / seconds * kilo, true, "as into plain memory"});
  }
  {
    Managed fresh(bytes);
    CUmemLocation here{};
    here.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(cuMemAdvise_v2, fresh.address(), bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, here);
    double seconds = stream.time([&] { bench.launch_touch(stream.handle(), fresh.address(), bytes); });
    rows.push_back({"managed: first touch, preferred location set", "ms/GiB", 23, seconds * per_giga, false, ""});
  }
  {
    Managed fresh(bytes);
    double seconds = stream.time([&] { prefetch(fresh.address(), bytes, true, stream.handle()); });
    rows.push_back({"managed: prefetch of fresh memory", "ms/GiB", 3.1, seconds * per_giga, false, ""});
  }
  {
    CUdeviceptr large = 0;  // compared with which a launch costs nothing
    OK(cuMemAlloc_v2, &large, 256 * kMega);
    double seconds = stream.time([&] {
      for (int count = 0; count < 20; ++count) bench.launch_touch(stream.handle(), large, 256 * kMega);
    });
    rows.push_back(
        {"kernel bandwidth", "GB/s", 3936, 2 * 20 * static_cast<double>(256 * kMega) / seconds * kilo, false, ""});
    OK(cuMemFree_v2, large);
  }
  double empty = stream.time([&] {
    for (int count = 0; count < 1000; ++count) bench.launch_spin(stream.handle(), 0);
  });
  rows.push_back({"empty kernel, back to back", "us", 3.3, empty * 1e6 / 1000, false, ""});
  double round = stream.time([&] {
    for (int count = 0; count < 1000; ++count) {
      bench.launch_spin(stream.handle(), 0);
      OK(cuCtxSynchronize);
    }
  });
  rows.push_back({"launch and cuCtxSynchronize", "us", 8.6, round * 1e6 / 1000, false, ""});

  rows.push_back({"both directions at once, one process, in sum", "GB/s", 95.0, duplex(bench, bench), true,
                  "PCI Express packets"});
  rows.push_back({"both directions at once, two processes, in sum", "GB/s", 102, duplex(other, bench), true,
                  "PCI Express packets"});
  double one = kernel_rate({&bench}, kKernels, compute);
  double both = kernel_rate({&bench, &other}, kKernels, compute);
  rows.push_back({"two compute-bound processes, part of one alone", "", (8750.0 + 8770) / 19180, both / one, true,
                  "slices of 2 ms and a switch"});
  one = kernel_rate({&bench}, kKernels, bandwidth);
  both = kernel_rate({&bench, &other}, kKernels, bandwidth);
  rows.push_back({"two bandwidth-bound processes, part of one alone", "", (832.0 + 833) / 1833, both / one, true,
                  "slices of 2 ms and a switch"});
  return rows;
}

// Prints a table that tools/simgpu/profiles/README.md takes as it is. False: a ratio is too far off.
bool print(std::vector<Row> rows) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& left, const Row& right) { return left.judged < right.judged; });
  std::printf("| figure | H200 | simgpu | ratio | |\n|---|---|---|---|---|\n");
  bool good = true;
  for (const Row& row : rows) {
    double ratio = row.simulated / row.measured;
    good = good && ratio >= 0.85 && ratio <= 1.15;
    std::printf("| %s | %.4g %s | %.4g | %.3f | %s%s%s |\n", row.what, row.measured, row.unit, row.simulated, ratio,
                row.judged ? "judged" : "fitted", *row.source != '\0' ? ": " : "", row.source);
  }
  if (!good) std::printf("a ratio is outside of 0.85 to 1.15\n");
  return good;
}

// Runs `work` in a process of its own and returns the number that it prints to its pipe.
class Process {
 public:
  explicit Process(const std::function<double(const std::function<void()>& ready)>& work) {
    if (pipe(result_) != 0 || pipe(ready_) != 0 || pipe(go_) != 0) std::abort();
    child_ = fork();
    if (child_ != 0) return;
    double value = work([this] {
      char byte = 'r';
      if (write(ready_[1], &byte, 1) != 1 || read(go_[0], &byte, 1) != 1) std::_Exit(1);
    });
    std::_Exit(write(result_[1], &value, sizeof value) == sizeof value ? 0 : 1);
  }
  void wait_ready() const {
    char byte = 0;
    if (read(ready_[0], &byte, 1) != 1) std::exit(1);
  }
  void go() const {
    if (write(go_[1], "g", 1) != 1) std::exit(1);
  }
  double result() const {
    double value = 0;
    if (read(result_[0], &value, sizeof value) != sizeof value) std::exit(1);
    waitpid(child_, nullptr, 0);
    return value;
  }

 private:
  int result_[2];
  int ready_[2];
  int go_[2];
  pid_t child_ = -1;
};

using Work = std::function<double(const std::function<void()>&)>;

// The longest of the processes' times, in seconds: they begin together.
double together(const std::vector<Work>& works) {
  std::vector<std::unique_ptr<Process>> processes;
  for (const Work& work : works) processes.push_back(std::make_unique<Process>(work));
  for (auto& process : processes) process->wait_ready();
  for (auto& process : processes) process->go();
  double longest = 0;
  for (auto& process : processes) longest = std::max(longest, process->result());
  return longest;
}

std::vector<Row> measure_processes() {
  auto copies = [](bool down) -> Work {
    return [down](const std::function<void()>& ready) {
      OK(cuInit, 0);
      Bench bench;
      Stream stream;
      std::memset(bench.pinned, 1, Bench::kBytes);
      copy_rate(bench, stream, down, bench.pinned);
      ready();
      return kCopies * static_cast<double>(Bench::kBytes) / 1e9 / copy_rate(bench, stream, down, bench.pinned);
    };
  };
  auto kernels = [](void (*launch)(const Bench&, CUstream)) -> Work {
    return [launch](const std::function<void()>& ready) {
      OK(cuInit, 0);
      Bench bench;
      kernel_rate({&bench}, 10, launch);
      ready();
      return 1000 / kernel_rate({&bench}, 1000, launch);
    };
  };
  std::vector<Row> rows;
  rows.push_back({"both directions at once, two processes, in sum", "GB/s", 102,
                  2 * kCopies * static_cast<double>(Bench::kBytes) / 1e9 / together({copies(true), copies(false)}),
                  true, "PCI Express packets"});
  double one = together({kernels(compute)});
  double both = together({kernels(compute), kernels(compute)});
  rows.push_back({"two compute-bound processes, part of one alone", "", (8750.0 + 8770) / 19180, 2 * one / both, true,
                  "slices of 2 ms and a switch"});
  one = together({kernels(bandwidth)});
  both = together({kernels(bandwidth), kernels(bandwidth)});
  rows.push_back({"two bandwidth-bound processes, part of one alone", "", (832.0 + 833) / 1833, 2 * one / both, true,
                  "slices of 2 ms and a switch"});
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  bool processes = argc > 1 && std::strcmp(argv[1], "--processes") == 0;
  const char* path = argc > (processes ? 2 : 1) ? argv[processes ? 2 : 1] : "libcuda.so.1";
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "sim_cost_model: %s\n", dlerror());
    return 1;
  }
  if (processes) return print(measure_processes()) ? 0 : 1;
  OK(cuInit, 0);
  return print(measure()) ? 0 : 1;
}
