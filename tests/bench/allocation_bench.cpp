// What rota adds to allocations where many threads allocate at once, on a machine without a GPU: rota's memory in
// front of a driver that does nothing but hold its one lock for as long as a real call holds it, which is what the
// threads of a real program queue for. Prints, by route and number of threads: allocations and frees a second, of the
// driver alone and with rota's managed and swapped memory; and how many of the driver's calls each takes, those that
// queue apart.
//
//     allocation_bench [--for SECONDS] [--threads N] [--latency NANOSECONDS]
//
// The latencies are assumptions: cuEventRecord and cuEventQuery as measured on an H200 with one thread, other calls in
// proportion. What counts is how the figures of two builds of rota compare.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "generated/driver_real.h"
#include "runtime/memory/memory.h"
#include "tests/unit/runtime/counting_driver.h"
#include "tests/unit/runtime/fake_driver.h"

using namespace rota;
using namespace rota::test;
using Clock = std::chrono::steady_clock;

namespace {

const auto kPool = reinterpret_cast<api::CUmemoryPool>(0x9000);

const auto kOwnPool = reinterpret_cast<api::CUmemoryPool>(0xa000);  // made by the program

enum class From { kPlain, kPitch, kStream, kPool };

struct Route {
  const char* name;
  std::uint64_t bytes;
  From from;
  bool freed_in_order;
};

struct Rate {
  double calls_per_second = 0;
  double asked = 0;   // the driver's calls for one of the program's
  double queued = 0;  // of these, those that take its lock
};

struct Bench {
  Bench(unsigned thread_count, double duration, std::chrono::nanoseconds latency)
      : threads(thread_count), seconds(duration) {
    driver.device_bytes = std::uint64_t{80} << 30;
    driver.finished = UINT64_MAX;
    driver.set<api::cuDeviceGetDefaultMemPool_fn>(Symbol::k_cuDeviceGetDefaultMemPool,
                                                  [](api::CUmemoryPool* own, api::CUdevice) {
                                                    *own = kPool;
                                                    return api::CUDA_SUCCESS;
                                                  });
    driver.set<api::cuStreamGetId_fn>(Symbol::k_cuStreamGetId, [](api::CUstream stream, unsigned long long* number) {
      *number = reinterpret_cast<std::uintptr_t>(stream);
      return api::CUDA_SUCCESS;
    });
    driver.set<api::cuMemAllocAsync_fn>(Symbol::k_cuMemAllocAsync,
                                        [](api::CUdeviceptr* address, std::size_t bytes, api::CUstream) {
                                          return FakeDriver::the().give_memory(address, bytes);
                                        });
    driver.set<api::cuMemFreeAsync_fn>(Symbol::k_cuMemFreeAsync, [](api::CUdeviceptr address, api::CUstream) {
      return FakeDriver::the().take_memory(address);
    });
    driver.set<api::cuMemAllocPitch_v2_fn>(
        Symbol::k_cuMemAllocPitch_v2,
        [](api::CUdeviceptr* address, std::size_t* pitch, std::size_t width, std::size_t height, unsigned) {
          *pitch = (width + 511) / 512 * 512;
          return FakeDriver::the().give_memory(address, *pitch * height);
        });
    driver.set<api::cuMemAllocFromPoolAsync_fn>(
        Symbol::k_cuMemAllocFromPoolAsync, [](api::CUdeviceptr* address, std::size_t bytes, api::CUmemoryPool,
                                              api::CUstream) { return FakeDriver::the().give_memory(address, bytes); });
    install_extents();
    counting.emplace();
    const auto costs = [&](Symbol symbol, int times) { counting->cost(symbol, latency * times); };
    for (const Symbol symbol :
         {Symbol::k_cuEventCreate, Symbol::k_cuEventDestroy_v2, Symbol::k_cuEventRecord, Symbol::k_cuEventQuery}) {
      costs(symbol, 1);
    }
    for (const Symbol symbol : {Symbol::k_cuMemAllocAsync, Symbol::k_cuMemAllocFromPoolAsync, Symbol::k_cuMemFreeAsync,
                                Symbol::k_cuMemAdvise, Symbol::k_cuMemMap}) {
      costs(symbol, 2);
    }
    for (const Symbol symbol :
         {Symbol::k_cuMemAlloc_v2, Symbol::k_cuMemAllocPitch_v2, Symbol::k_cuMemFree_v2, Symbol::k_cuMemPrefetchAsync,
          Symbol::k_cuMemSetAccess, Symbol::k_cuMemUnmap, Symbol::k_cuMemRelease}) {
      costs(symbol, 5);
    }
    for (const Symbol symbol : {Symbol::k_cuMemAllocManaged, Symbol::k_cuMemCreate}) costs(symbol, 20);
    context = driver.enter_context(0);
  }

  void install_extents() {
    driver.set<api::cuDeviceGetAttribute_fn>(
        Symbol::k_cuDeviceGetAttribute, [](int* value, api::CUdevice_attribute which, api::CUdevice) {
          // Everything but what memory is not swapped with (swap/untried.h).
          *value = which != api::CU_DEVICE_ATTRIBUTE_MPS_ENABLED &&
                   which != api::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
          return api::CUDA_SUCCESS;
        });
    driver.set<api::cuMemGetAllocationGranularity_fn>(Symbol::k_cuMemGetAllocationGranularity,
                                                      [](std::size_t* bytes, auto...) {
                                                        *bytes = 2 << 20;
                                                        return api::CUDA_SUCCESS;
                                                      });
    driver.set<api::cuMemAddressReserve_fn>(Symbol::k_cuMemAddressReserve,
                                            [](api::CUdeviceptr* address, std::size_t bytes, auto...) {
                                              return FakeDriver::the().give_memory(address, bytes);
                                            });
    driver.set<api::cuMemAddressFree_fn>(Symbol::k_cuMemAddressFree, [](api::CUdeviceptr address, std::size_t) {
      return FakeDriver::the().take_memory(address);
    });
    driver.set<api::cuMemCreate_fn>(Symbol::k_cuMemCreate, [](api::CUmemGenericAllocationHandle* handle, auto...) {
      static std::atomic<api::CUmemGenericAllocationHandle> last{0};
      *handle = ++last;
      return api::CUDA_SUCCESS;
    });
    driver.set<api::cuMemMap_fn>(Symbol::k_cuMemMap, [](auto...) { return api::CUDA_SUCCESS; });
    driver.set<api::cuMemSetAccess_fn>(Symbol::k_cuMemSetAccess, [](auto...) { return api::CUDA_SUCCESS; });
    driver.set<api::cuMemUnmap_fn>(Symbol::k_cuMemUnmap, [](auto...) { return api::CUDA_SUCCESS; });
    driver.set<api::cuMemRelease_fn>(Symbol::k_cuMemRelease, [](auto...) { return api::CUDA_SUCCESS; });
  }

  template <typename Allocate, typename Free>
  Rate measure(const Route& route, const Allocate& allocate, const Free& free) {
    counting->reset();
    std::atomic<long> calls{0};
    std::vector<std::thread> workers;
    const auto begun = Clock::now();
    const auto until = begun + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    for (unsigned number = 0; number < threads; ++number) {
      workers.emplace_back([&, number] {
        real::cuCtxPushCurrent_v2(context);
        // Two threads to a stream, as in tests/programs/allocation_storm.cpp.
        const auto stream = reinterpret_cast<api::CUstream>(std::uintptr_t{0x1000} * (1 + number % (threads / 2 + 1)));
        std::vector<api::CUdeviceptr> held;
        long made = 0;
        while (Clock::now() < until) {
          api::CUdeviceptr address = 0;
          const std::uint64_t bytes = route.bytes / 8 * (1 + (made * 7 + number) % 8);
          if (held.size() < 6 && allocate(&address, bytes, stream) == api::CUDA_SUCCESS) {
            held.push_back(address);
          } else {
            free(held.front(), stream);
            held.erase(held.begin());
          }
          ++made;
        }
        calls.fetch_add(made);
        for (const api::CUdeviceptr address : held) free(address, stream);
      });
    }
    for (std::thread& worker : workers) worker.join();
    const double took = std::chrono::duration<double>(Clock::now() - begun).count();
    const auto made = static_cast<double>(calls.load());
    return {made / took, static_cast<double>(counting->total()) / made, static_cast<double>(counting->locked()) / made};
  }

  Rate alone(const Route& route) {
    const auto allocate = [&](api::CUdeviceptr* address, std::uint64_t bytes, api::CUstream stream) {
      std::size_t pitch = 0;
      switch (route.from) {
        case From::kPitch:
          return real::cuMemAllocPitch_v2(address, &pitch, kWidth, bytes / kWidth, 4);
        case From::kStream:
          return real::cuMemAllocAsync(address, bytes, stream);
        case From::kPool:
          return real::cuMemAllocFromPoolAsync(address, bytes, kOwnPool, stream);
        case From::kPlain:
          break;
      }
      return real::cuMemAlloc_v2(address, bytes);
    };
    const auto free = [&](api::CUdeviceptr address, api::CUstream stream) {
      return route.freed_in_order ? real::cuMemFreeAsync(address, stream) : real::cuMemFree_v2(address);
    };
    return measure(route, allocate, free);
  }

  Rate with_rota(const Route& route, memory::Choice choice) {
    memory::Ledger ledger;
    memory::Memory memory(ledger, {.backend = choice});
    memory.pools().made(kOwnPool, {.device = 0, .kind = memory::Kind::kAsync, .replaceable = true});
    const auto allocate = [&](api::CUdeviceptr* address, std::uint64_t bytes, api::CUstream stream) {
      std::size_t pitch = 0;
      if (route.from == From::kPlain) return memory.allocate(address, bytes);
      if (route.from == From::kPitch) return memory.allocate_pitch(address, &pitch, kWidth, bytes / kWidth, 4);
      const api::CUmemoryPool pool = route.from == From::kPool ? kOwnPool : nullptr;
      return memory.allocate_async({.address = address, .bytes = bytes, .pool = pool, .stream = stream},
                                   [] { return api::CUDA_ERROR_UNKNOWN; });
    };
    const auto free = [&](api::CUdeviceptr address, api::CUstream stream) {
      return route.freed_in_order ? memory.free_async(address, stream, false, [] { return api::CUDA_ERROR_UNKNOWN; })
                                  : memory.free_waiting(address, false, [&] { return real::cuMemFree_v2(address); });
    };
    return measure(route, allocate, free);
  }

  static constexpr std::size_t kWidth = 4096;  // of a row

  unsigned threads;
  double seconds;
  FakeDriver driver;
  std::optional<CountingDriver> counting;
  api::CUcontext context = nullptr;
};

constexpr Route kRoutes[] = {
    {"cuMemAllocAsync, cuMemFreeAsync", 256 << 10, From::kStream, true},
    {"cuMemAllocAsync, cuMemFree", 256 << 10, From::kStream, false},
    {"cuMemAllocFromPoolAsync, cuMemFreeAsync", 256 << 10, From::kPool, true},
    {"cuMemAlloc, cuMemFree", 512 << 10, From::kPlain, false},
    {"cuMemAllocPitch, cuMemFree", 512 << 10, From::kPitch, false},
    {"cuMemAlloc, cuMemFreeAsync", 512 << 10, From::kPlain, true},
    {"cuMemAlloc, cuMemFree of 8 MiB", 8 << 20, From::kPlain, false},
    {"cuMemAlloc, cuMemFreeAsync of 8 MiB", 8 << 20, From::kPlain, true},
};

}  // namespace

int main(int argc, char** argv) {
  double seconds = 0.5;
  long most = 16;
  long latency = 500;
  for (int index = 1; index < argc; index += 2) {
    const std::string name = argv[index];
    const char* value = index + 1 < argc ? argv[index + 1] : "";
    if (name == "--for" && *value != '\0') {
      seconds = std::atof(value);
    } else if (name == "--threads" && *value != '\0') {
      most = std::atol(value);
    } else if (name == "--latency" && *value != '\0') {
      latency = std::atol(value);
    } else {
      std::fprintf(stderr, "usage: allocation_bench [--for SECONDS] [--threads N] [--latency NANOSECONDS]\n");
      return 2;
    }
  }
  std::printf("%-40s %7s %-8s %12s %12s %6s %8s %8s\n", "route", "threads", "memory", "alone/s", "rota/s", "ratio",
              "calls", "queued");
  for (const Route& route : kRoutes) {
    for (const unsigned threads : {1u, static_cast<unsigned>(most)}) {
      for (const auto& [name, choice] :
           {std::pair{"managed", memory::Choice::kManaged}, std::pair{"swap", memory::Choice::kSwap}}) {
        Bench bench(threads, seconds, std::chrono::nanoseconds(latency));
        const Rate alone = bench.alone(route);
        const Rate rota = bench.with_rota(route, choice);
        std::printf("%-40s %7u %-8s %12.0f %12.0f %6.2f %8.2f %8.2f\n", route.name, threads, name,
                    alone.calls_per_second, rota.calls_per_second, rota.calls_per_second / alone.calls_per_second,
                    rota.asked, rota.queued);
      }
    }
  }
  return 0;
}
