// Threads allocate, write, check and free for a while through every function that allocates or frees GPU memory, with
// blocks of many sizes alive at once. Half of the threads share a stream with another one. An allocation refused for
// lack of memory is skipped. Prints "ok N calls, R a second, O refused, B bytes left": the calls that allocate or free,
// and the GPU memory that, according to cuMemGetInfo, is still missing at the end.
//
// With --launch kernels write, and threads launch kernels over their blocks all the time, which check every word and
// write it anew. With --held each thread has its part of so many bytes from the first to the last. --without managed
// leaves a route out. "moved" in such a run is up to rota: two of them on a GPU that has no room for both.
//
// With --table, for this many seconds each: every route alone and all together, with one thread, four threads and all
// threads. Prints the calls per second, and the average time in microseconds of an allocation, an immediate free
// (cuMemFree and similar) and a stream-ordered free, without the program's own waiting before it.
#include <array>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

namespace {

template <typename Function>
Function* found(const char* symbol, const char* base, int version) {
  auto* function = reinterpret_cast<Function*>(cuda().find(symbol, base, version, 0));
  if (function == nullptr) fail("the driver has no %s", base);
  return function;
}

struct Functions {
  cuMemAllocPitch_v2_fn* alloc_pitch = found<cuMemAllocPitch_v2_fn>("cuMemAllocPitch_v2", "cuMemAllocPitch", 3020);
  cuMemAllocFromPoolAsync_fn* alloc_from_pool =
      found<cuMemAllocFromPoolAsync_fn>("cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", 11020);
  cuMemPoolCreate_fn* pool_create = found<cuMemPoolCreate_fn>("cuMemPoolCreate", "cuMemPoolCreate", 11020);
  cuMemPoolDestroy_fn* pool_destroy = found<cuMemPoolDestroy_fn>("cuMemPoolDestroy", "cuMemPoolDestroy", 11020);
  cuMemPoolTrimTo_fn* pool_trim = found<cuMemPoolTrimTo_fn>("cuMemPoolTrimTo", "cuMemPoolTrimTo", 11020);
  cuDeviceGetDefaultMemPool_fn* default_pool =
      found<cuDeviceGetDefaultMemPool_fn>("cuDeviceGetDefaultMemPool", "cuDeviceGetDefaultMemPool", 11020);
  cuMemAddressReserve_fn* reserve = found<cuMemAddressReserve_fn>("cuMemAddressReserve", "cuMemAddressReserve", 10020);
  cuMemAddressFree_fn* unreserve = found<cuMemAddressFree_fn>("cuMemAddressFree", "cuMemAddressFree", 10020);
  cuMemCreate_fn* create = found<cuMemCreate_fn>("cuMemCreate", "cuMemCreate", 10020);
  cuMemRelease_fn* release = found<cuMemRelease_fn>("cuMemRelease", "cuMemRelease", 10020);
  cuMemMap_fn* map = found<cuMemMap_fn>("cuMemMap", "cuMemMap", 10020);
  cuMemUnmap_fn* unmap = found<cuMemUnmap_fn>("cuMemUnmap", "cuMemUnmap", 10020);
  cuMemSetAccess_fn* set_access = found<cuMemSetAccess_fn>("cuMemSetAccess", "cuMemSetAccess", 10020);
  cuArrayCreate_v2_fn* array_create = found<cuArrayCreate_v2_fn>("cuArrayCreate_v2", "cuArrayCreate", 3020);
  cuArrayDestroy_fn* array_destroy = found<cuArrayDestroy_fn>("cuArrayDestroy", "cuArrayDestroy", 2000);
};

constexpr size_t kPhysicalBytes = size_t{2} << 20;

enum class Route { kPlain, kPitch, kManaged, kAsync, kPool, kVirtual, kArray };
constexpr unsigned kRoutes = 7;
constexpr std::array kNames = {"plain", "pitch", "managed", "async", "pool", "virtual", "array"};
constexpr unsigned kAll = (1u << kRoutes) - 1;

struct Timed {
  unsigned long calls = 0;
  double seconds = 0;
  void add(const Timed& other) {
    calls += other.calls;
    seconds += other.seconds;
  }
};
enum Operation { kAllocate, kFree, kFreeInOrder, kOperations };
using Times = std::array<std::array<Timed, kOperations>, kRoutes>;

// Times one call, until the end of the scope.
class Timer {
 public:
  explicit Timer(Timed& into) : into_(into), begun_(seconds()) {}
  ~Timer() { into_.add({1, seconds() - begun_}); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  Timed& into_;
  double begun_;
};

struct Block {
  Route route = Route::kPlain;
  CUdeviceptr address = 0;
  size_t bytes = 0;  // written and checked
  unsigned value = 0;
  CUarray array = nullptr;
  CUmemGenericAllocationHandle physical = 0;
};

// The work of a number of threads for a while.
struct Storm {
  unsigned threads;
  double duration;
  unsigned seed;
  uint64_t most;
  unsigned routes = kAll;
  bool launch = false;
  uint64_t held = 0;
};

class Worker {
 public:
  // `storm.routes`: a bit for each route that it allocates by.
  Worker(const Functions& functions, CUmemoryPool pool, CUstream stream, unsigned seed, const Storm& storm)
      : functions_(functions), pool_(pool), stream_(stream), random_(seed), most_(storm.most) {
    for (unsigned route = 0; route < kRoutes; ++route) {
      if ((storm.routes >> route & 1) != 0) routes_.push_back(static_cast<Route>(route));
    }
    if (!storm.launch) return;
    fill_ = kernel("_Z4fillPjmj");
    touch_ = kernel("_Z8memtouchPjmmjS_");
    CHECK(cuMemAlloc_v2(&mismatches_, sizeof(unsigned)));
    CHECK(cuMemsetD32Async(mismatches_, 0, 1, stream_));
    held_.bytes = storm.held / storm.threads / 4 * 4;
    if (held_.bytes == 0) return;
    CHECK(cuMemAlloc_v2(&held_.address, held_.bytes));
    held_.value = seed;
    write(held_);
  }

  void step() {
    if (touch_ != nullptr) touch(held_.bytes != 0 && random_() % 8 == 0 ? held_ : any());
    if (blocks_.size() < 12 && (blocks_.empty() || random_() % 2 == 0)) {
      allocate();
    } else {
      free_at(random_() % blocks_.size());
    }
  }
  void end() {
    while (!blocks_.empty()) free_at(blocks_.size() - 1);
    touch(held_);
    CHECK(cuStreamSynchronize(stream_));
    if (mismatches_ == 0) return;
    unsigned wrong = 0;
    CHECK(cuMemcpyDtoH_v2(&wrong, mismatches_, sizeof wrong));
    if (wrong != 0) fail("kernels found %u words that were not what was written", wrong);
    CHECK(cuMemFree_v2(mismatches_));
    if (held_.address != 0) CHECK(cuMemFree_v2(held_.address));
  }
  unsigned long launches() const { return launches_; }
  unsigned long calls() const { return calls_; }
  unsigned long refused() const { return refused_; }
  const Times& times() const { return times_; }

 private:
  Block& any() { return blocks_.empty() ? held_ : blocks_[random_() % blocks_.size()]; }

  void write(const Block& block) {
    if (fill_ == nullptr) return CHECK(cuMemsetD32Async(block.address, block.value, block.bytes / 4, stream_));
    Block written = block;
    unsigned long words = block.bytes / 4;
    void* parameters[] = {&written.address, &words, &written.value};
    launch(fill_, parameters);
  }

  // A kernel compares every word with the block's value, and adds one to both.
  void touch(Block& block) {
    if (touch_ == nullptr || block.address == 0) return;
    unsigned long words = block.bytes / 4;
    unsigned long stride = 1;
    void* parameters[] = {&block.address, &words, &stride, &block.value, &mismatches_};
    launch(touch_, parameters);
    ++block.value;
  }

  void launch(CUfunction function, void** parameters) {
    ++launches_;
    CHECK(cuLaunchKernel(function, 16, 1, 1, 128, 1, 1, 0, stream_, parameters, nullptr));
  }

  void allocate() {
    Block block;
    block.route = routes_[random_() % routes_.size()];
    block.bytes = (1 + random_() % (most_ / 4)) * 4;
    // Many sizes come again and again.
    if (random_() % 2 == 0 && most_ >= 64) block.bytes = (1 + random_() % 8) * (most_ / 64 * 4);
    block.value = static_cast<unsigned>(random_());
    CUresult result = CUDA_SUCCESS;
    std::optional<Timer> timer(std::in_place, timed(block, kAllocate));
    switch (block.route) {
      case Route::kPlain:
        result = cuda().cuMemAlloc_v2(&block.address, block.bytes);
        break;
      case Route::kPitch: {
        size_t pitch = 0;
        result = functions_.alloc_pitch(&block.address, &pitch, block.bytes, 3, 4);
        break;
      }
      case Route::kManaged:
        result = cuda().cuMemAllocManaged(&block.address, block.bytes, CU_MEM_ATTACH_GLOBAL);
        break;
      case Route::kAsync:
        result = cuda().cuMemAllocAsync(&block.address, block.bytes, stream_);
        break;
      case Route::kPool:
        result = functions_.alloc_from_pool(&block.address, block.bytes, pool_, stream_);
        break;
      case Route::kVirtual: {
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        CUmemAccessDesc access{};
        access.location = properties.location;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        block.bytes = kPhysicalBytes;
        result = functions_.create(&block.physical, kPhysicalBytes, &properties, 0);
        if (result != CUDA_SUCCESS) break;
        check(functions_.reserve(&block.address, kPhysicalBytes, 0, 0, 0), "cuMemAddressReserve");
        check(functions_.map(block.address, kPhysicalBytes, 0, block.physical, 0), "cuMemMap");
        check(functions_.set_access(block.address, kPhysicalBytes, &access, 1), "cuMemSetAccess");
        break;
      }
      case Route::kArray: {
        CUDA_ARRAY_DESCRIPTOR descriptor{};
        descriptor.Width = 1 + random_() % 256;
        descriptor.Height = 1 + random_() % 64;
        descriptor.Format = CU_AD_FORMAT_UNSIGNED_INT32;
        descriptor.NumChannels = 1;
        result = functions_.array_create(&block.array, &descriptor);
        break;
      }
    }
    timer.reset();
    ++calls_;
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      ++refused_;
      return;
    }
    check(result, "an allocation");
    if (block.address != 0) write(block);
    blocks_.push_back(block);
  }

  // Read in the block's own stream, behind the write and before the free.
  void verify(const Block& block) {
    std::array<unsigned, 2> words{};
    CHECK(cuMemcpyDtoHAsync_v2(&words[0], block.address, 4, stream_));
    CHECK(cuMemcpyDtoHAsync_v2(&words[1], block.address + block.bytes - 4, 4, stream_));
    CHECK(cuStreamSynchronize(stream_));
    for (const unsigned word : words) {
      if (word != block.value) {
        fail("%zu bytes at %llx by route %d: %x was written and %x is there", block.bytes,
             static_cast<unsigned long long>(block.address), static_cast<int>(block.route), block.value, word);
      }
    }
  }

  void free_at(size_t index) {
    const Block block = blocks_[index];
    blocks_[index] = blocks_.back();
    blocks_.pop_back();
    ++calls_;
    if (block.route == Route::kArray) {
      const Timer timer(timed(block, kFree));
      return check(functions_.array_destroy(block.array), "cuArrayDestroy");
    }
    if (random_() % 4 == 0) verify(block);
    if (block.route == Route::kVirtual) {
      CHECK(cuStreamSynchronize(stream_));
      const Timer timer(timed(block, kFree));
      check(functions_.unmap(block.address, kPhysicalBytes), "cuMemUnmap");
      check(functions_.release(block.physical), "cuMemRelease");
      return check(functions_.unreserve(block.address, kPhysicalBytes), "cuMemAddressFree");
    }
    // Managed memory cannot be freed in stream order. Memory that is freed immediately must be out of use, or the call
    // has to wait.
    if (block.route == Route::kManaged || random_() % 2 == 0) {
      const bool waits = block.route != Route::kAsync && block.route != Route::kPool;
      if (!waits) CHECK(cuStreamSynchronize(stream_));
      const Timer timer(timed(block, kFree));
      CHECK(cuMemFree_v2(block.address));
    } else {
      const Timer timer(timed(block, kFreeInOrder));
      CHECK(cuMemFreeAsync(block.address, stream_));
    }
  }

  Timed& timed(const Block& block, Operation operation) {
    return times_[static_cast<std::size_t>(block.route)][operation];
  }

  const Functions& functions_;
  CUmemoryPool pool_;
  CUstream stream_;
  std::mt19937 random_;
  uint64_t most_;
  std::vector<Block> blocks_;
  unsigned long calls_ = 0;
  unsigned long refused_ = 0;
  unsigned long launches_ = 0;
  std::vector<Route> routes_;
  Times times_{};
  CUfunction fill_ = nullptr;
  CUfunction touch_ = nullptr;
  CUdeviceptr mismatches_ = 0;
  Block held_;
};

struct Outcome {
  unsigned long calls = 0;
  unsigned long launches = 0;
  unsigned long refused = 0;
  double took = 0;
  Times times{};

  double rate() const { return static_cast<double>(calls) / took; }
};

Outcome run(const Storm& storm, const Functions& functions, CUcontext context, CUmemoryPool pool) {
  std::vector<CUstream> streams(storm.threads / 2 + 1);
  for (CUstream& stream : streams) CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  Outcome all;
  std::mutex mutex;
  const double start_time = seconds();
  std::vector<std::thread> workers;
  for (unsigned number = 0; number < storm.threads; ++number) {
    workers.emplace_back([&, number] {
      CHECK(cuCtxSetCurrent(context));
      Worker worker(functions, pool, streams[number % streams.size()], storm.seed * 1000 + number, storm);
      while (seconds() - start_time < storm.duration) worker.step();
      worker.end();
      const std::lock_guard lock(mutex);
      all.calls += worker.calls();
      all.refused += worker.refused();
      all.launches += worker.launches();
      for (unsigned route = 0; route < kRoutes; ++route) {
        for (unsigned operation = 0; operation < kOperations; ++operation) {
          all.times[route][operation].add(worker.times()[route][operation]);
        }
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  all.took = seconds() - start_time;
  for (const CUstream stream : streams) CHECK(cuStreamDestroy_v2(stream));
  return all;
}

void print_row(unsigned threads, const char* routes, const char* of, const Outcome& outcome, unsigned mask) {
  std::array<Timed, kOperations> sums{};
  for (unsigned route = 0; route < kRoutes; ++route) {
    for (unsigned operation = 0; operation < kOperations; ++operation) {
      if ((mask >> route & 1) != 0) sums[operation].add(outcome.times[route][operation]);
    }
  }
  unsigned long calls = 0;
  std::printf("%7u  %-8s %-8s", threads, routes, of);
  for (const Timed& timed : sums) calls += timed.calls;
  std::printf(" %11.0f", static_cast<double>(calls) / outcome.took);
  for (const Timed& timed : sums) {
    timed.calls != 0 ? std::printf(" %10.1f", timed.seconds / static_cast<double>(timed.calls) * 1e6)
                     : std::printf(" %10s", "-");
  }
  std::putchar('\n');
  std::fflush(stdout);
}

void print_table(Storm storm, const Functions& functions, CUcontext context, CUmemoryPool pool) {
  std::printf("%7s  %-8s %-8s %11s %10s %10s %10s\n", "threads", "routes", "of them", "calls/s", "alloc us", "free us",
              "ordered us");
  std::vector<unsigned> counts{1};
  for (const unsigned count : {4u, storm.threads}) {
    if (count > counts.back() && count <= storm.threads) counts.push_back(count);
  }
  for (const unsigned threads : counts) {
    storm.threads = threads;
    for (unsigned route = 0; route < kRoutes; ++route) {
      storm.routes = 1u << route;
      print_row(threads, kNames[route], "", run(storm, functions, context, pool), storm.routes);
    }
    storm.routes = kAll;
    const Outcome outcome = run(storm, functions, context, pool);
    print_row(threads, "all", "", outcome, kAll);
    for (unsigned route = 0; route < kRoutes; ++route) print_row(threads, "all", kNames[route], outcome, 1u << route);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options(argc, argv,
                  "allocation_storm [--threads N] [--for SECONDS] [--bytes MOST] [--seed N] [--table] "
                  "[--launch [--held N[K|M|G]]] [--without ROUTE]");
  Storm storm{.threads = static_cast<unsigned>(options.number("--threads", 16)),
              .duration = options.number("--for", 2),
              .seed = static_cast<unsigned>(options.number("--seed", 1)),
              .most = 0};
  const bool table = options.flag("--table");
  start();
  storm.most = options.bytes("--bytes", 300 << 10);
  storm.launch = options.flag("--launch");
  storm.held = options.bytes("--held", 0);
  const std::string without = options.text("--without", "");
  for (unsigned route = 0; route < kRoutes; ++route) {
    if (without == kNames[route]) storm.routes &= ~(1u << route);
  }
  options.end();
  CUcontext context = nullptr;
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  const Functions functions;
  size_t free_before = 0;
  size_t total = 0;
  CHECK(cuMemGetInfo_v2(&free_before, &total));
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool pool = nullptr;
  check(functions.pool_create(&pool, &properties), "cuMemPoolCreate");
  // As frameworks have it: what is freed stays in the pool.
  uint64_t keep = UINT64_MAX;
  CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  if (table) print_table(storm, functions, context, pool);
  const Outcome outcome = table ? Outcome{.took = 1} : run(storm, functions, context, pool);
  check(functions.pool_destroy(pool), "cuMemPoolDestroy");
  CUmemoryPool standard = nullptr;
  check(functions.default_pool(&standard, 0), "cuDeviceGetDefaultMemPool");
  check(functions.pool_trim(standard, 0), "cuMemPoolTrimTo");
  CHECK(cuCtxSynchronize());
  size_t free_after = 0;
  CHECK(cuMemGetInfo_v2(&free_after, &total));
  const auto left = static_cast<long long>(free_before) - static_cast<long long>(free_after);
  if (table) {
    std::printf("ok %lld bytes left\n", left);
  } else {
    std::printf("ok %lu calls, %.0f a second, %lu refused, %lld bytes left", outcome.calls, outcome.rate(),
                outcome.refused, left);
    if (storm.launch) std::printf(", %lu launches", outcome.launches);
    std::putchar('\n');
  }
  return 0;
}
