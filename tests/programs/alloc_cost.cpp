// How long cuMemAlloc and cuMemFree take: cold, when nothing of that size was freed before, and warm, when it was.
//
//   alloc_cost --bytes N[K|M|G] [--count N]
//   alloc_cost --bytes N[K|M|G] --stream-ordered
//   alloc_cost --among-others
//
// Allocates --count pieces (default: as many as make 2 GiB, at least 2 and at most 512), frees them, and then allocates
// and frees one again and again. Prints a line of JSON: for each kind of call the mean, the median and the longest, in
// microseconds. tests/gpu/swap_cost.py compares it with and without rota.
//
// --stream-ordered: cuMemAllocAsync and cuMemFreeAsync in a stream, 20 000 pairs of them: by themselves, and each
// around a short kernel, where the GPU is the one that is busy; the same kernels alone. Microseconds for each pair,
// until the stream has finished.
//
// --among-others: the same pair as a framework calls it, of 40 sizes, up to 200 pieces at a time, with other work
// before each call, which takes the processor's caches. Microseconds for each of the two calls, the median.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

namespace {

class Taken {
 public:
  template <typename Call>
  void time(Call&& call) {
    const double began = seconds();
    call();
    all_.push_back((seconds() - began) * 1e6);
  }
  void print(const char* name) {
    std::sort(all_.begin(), all_.end());
    double sum = 0;
    for (const double each : all_) sum += each;
    std::printf(",\"%s\":{\"mean\":%.2f,\"p50\":%.2f,\"max\":%.2f}", name, sum / static_cast<double>(all_.size()),
                all_[all_.size() / 2], all_.back());
  }

 private:
  std::vector<double> all_;
};

}  // namespace

int stream_ordered(uint64_t bytes) {
  constexpr int kPairs = 20'000;
  CUstream stream = nullptr;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUfunction poke = kernel("_Z4pokePjj");
  CUdeviceptr word = 0;
  CHECK(cuMemAlloc_v2(&word, 256));
  unsigned value = 0;
  const auto each = [&](bool allocates, bool launches) {
    const double began = seconds();
    for (int pair = 0; pair < kPairs; ++pair) {
      CUdeviceptr memory = word;
      if (allocates) CHECK(cuMemAllocAsync(&memory, bytes, stream));
      void* parameters[] = {&memory, &value};
      if (launches) CHECK(cuLaunchKernel(poke, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
      if (allocates) CHECK(cuMemFreeAsync(memory, stream));
    }
    CHECK(cuStreamSynchronize(stream));
    return (seconds() - began) * 1e6 / kPairs;
  };
  each(true, true);  // what the first calls set up counts for none
  std::printf("{\"bytes\":%llu", static_cast<unsigned long long>(bytes));
  std::printf(",\"pair\":%.3f", each(true, false));
  std::printf(",\"kernel\":%.3f", each(false, true));
  std::printf(",\"pair_and_kernel\":%.3f}\n", each(true, true));
  return 0;
}

// Work that leaves little of the processor's first caches to what runs next: of data, and on x86-64 of code.
class Others {
 public:
  Others() : data_(kData / sizeof(uint64_t), 1) {
#if defined(__x86_64__)
    void* const code = mmap(nullptr, kCode, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) fail("mmap");
    std::memset(code, 0x90, kCode - 1);                   // nop
    static_cast<unsigned char*>(code)[kCode - 1] = 0xc3;  // ret
    run_ = reinterpret_cast<void (*)()>(code);
#endif
  }
  void work() {
    for (size_t at = 0; at < data_.size(); at += 8) data_[at] += at;
    if (run_ != nullptr) run_();
  }

 private:
  static constexpr size_t kData = 256 << 10;
  static constexpr size_t kCode = 128 << 10;
  std::vector<uint64_t> data_;
  void (*run_)() = nullptr;
};

int among_others() {
  constexpr int kCalls = 20'000;
  CUstream stream = nullptr;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUmemoryPool pool = nullptr;
  CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
  uint64_t keep = UINT64_MAX;
  CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  Others others;
  std::mt19937_64 random(7);
  std::vector<size_t> sizes;
  for (int index = 0; index < 40; ++index) sizes.push_back((size_t{512} << (random() % 13)) * (2 + random() % 3));
  std::vector<CUdeviceptr> kept;
  std::vector<double> allocations, frees;
  const auto taken = [&](auto&& call) {
    others.work();
    const auto began = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count();
  };
  for (int call = 0; call < kCalls; ++call) {
    if (kept.size() < 200) {
      CUdeviceptr memory = 0;
      allocations.push_back(taken([&] { CHECK(cuMemAllocAsync(&memory, sizes[random() % sizes.size()], stream)); }));
      kept.push_back(memory);
      if (kept.size() < 200 && random() % 2 == 0) continue;
    }
    std::swap(kept[random() % kept.size()], kept.back());
    frees.push_back(taken([&] { CHECK(cuMemFreeAsync(kept.back(), stream)); }));
    kept.pop_back();
    if (random() % 2 == 0 && call % 16 == 0) {
      for (const auto each : kept) CHECK(cuMemFreeAsync(each, stream));
      kept.clear();
    }
  }
  CHECK(cuStreamSynchronize(stream));
  const auto median = [](std::vector<double>& all) {
    all.erase(all.begin(), all.begin() + static_cast<ptrdiff_t>(all.size() / 4));  // the first calls set things up
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  };
  std::printf("{\"allocation\":%.3f,\"free\":%.3f}\n", median(allocations), median(frees));
  return 0;
}

int main(int argc, char** argv) {
  Options options(argc, argv, "alloc_cost --bytes N[K|M|G] [--count N] [--stream-ordered] | --among-others");
  start();
  const uint64_t bytes = options.bytes("--bytes", uint64_t{2} << 20);
  const auto usual = std::clamp<uint64_t>((uint64_t{2} << 30) / bytes, 2, 512);
  const auto count = static_cast<size_t>(options.number("--count", static_cast<double>(usual)));
  const bool in_stream = options.flag("--stream-ordered");
  const bool with_others = options.flag("--among-others");
  options.end();
  if (with_others) return among_others();
  if (in_stream) return stream_ordered(bytes);
  CUdeviceptr first = 0;  // what the first call of all sets up counts for none
  CHECK(cuMemAlloc_v2(&first, 256));
  CHECK(cuMemsetD32_v2(first, 0, 64));
  CHECK(cuCtxSynchronize());
  std::vector<CUdeviceptr> pieces(count);
  Taken cold;
  Taken freed;
  Taken warm;
  for (CUdeviceptr& each : pieces) cold.time([&] { CHECK(cuMemAlloc_v2(&each, bytes)); });
  for (const CUdeviceptr each : pieces) {
    CHECK(cuMemsetD32_v2(each, 1, bytes / sizeof(unsigned)));
    CHECK(cuCtxSynchronize());
    freed.time([&] { CHECK(cuMemFree_v2(each)); });
  }
  for (int number = 0; number < 50; ++number) {
    warm.time([&] {
      CUdeviceptr again = 0;
      CHECK(cuMemAlloc_v2(&again, bytes));
      CHECK(cuMemFree_v2(again));
    });
  }
  std::printf("{\"bytes\":%llu,\"count\":%zu", static_cast<unsigned long long>(bytes), count);
  cold.print("cold_alloc");
  freed.print("first_free");
  warm.print("warm_alloc_and_free");
  std::puts("}");
  return 0;
}
