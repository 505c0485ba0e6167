// What a program is told about memory: how much there is, how much is free, and the attributes of pools and addresses.
// The figures agree with each other and with the limit, decrease as memory is taken, and never fall below zero.
#include <catch2/catch.hpp>

#include "scheduler/rules/context_cost.h"
#include "tests/unit/runtime/memory/on_simgpu/crossing.h"
#include "tests/unit/runtime/memory/on_simgpu/matrix.h"

using namespace rota;
using namespace rota::test;

namespace {

constexpr std::uint64_t kLimit = 64 * kMiB;

struct Figures {
  std::size_t free = 0;
  std::size_t total = 0;
};

// A program that takes everything that is reported as free stays within the limit, its context included.
constexpr std::uint64_t kUsable = kLimit - protocol::assumed_context(kGpuBytes);

// Of the current context's GPU.
Figures info() {
  Figures figures;
  EXPECT_OK(cu.cuMemGetInfo_v2(&figures.free, &figures.total));
  EXPECT(figures.free <= figures.total);
  return figures;
}

void check(const std::string& limit, const std::function<void()>& program,
           std::initializer_list<Mode> modes = {Mode::kNative, Mode::kManaged, Mode::kSwap}) {
  for (const Mode mode : modes) {
    const std::string report =
        on_simgpu({.mode = mode, .limit = limit, .replace = {}, .neighbour = export_memory}, program);
    INFO(name_of(mode));
    CHECK(report == "");
  }
}

void totals_agree(std::uint64_t expected) {
  for (const int device : {0, 1}) {
    std::size_t total = 0;
    EXPECT_OK(cu.cuDeviceTotalMem_v2(&total, device));  // needs no context
    EXPECT(total == expected);
    enter(device);
    EXPECT(info().total == expected);
  }
  std::size_t total = 1;
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, cu.cuDeviceTotalMem_v2(&total, 7));
  EXPECT(total == 1);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuDeviceTotalMem_v2(nullptr, 0));
}

// A route of the crossing, in a context of GPU 0.
struct Trip {
  explicit Trip(const Route& route) : name(route.name) {
    scene.other = enter(1);
    EXPECT_OK(cu.cuStreamCreate(&scene.stream_of_other, CU_STREAM_NON_BLOCKING));
    scene.context = enter(0);
    EXPECT_OK(cu.cuStreamCreate(&scene.stream, CU_STREAM_NON_BLOCKING));
    take = route.take;
  }
  std::string name;
  Scene scene;
  CUdeviceptr (*take)(Scene& scene);
};

// The notes of the routes' calls do not matter here.
void expect_figures(const Trip& trip, int device) {
  enter(device);
  const Figures figures = info();
  const std::uint64_t own = charged(device);
  if (figures.free != kUsable - own) {
    note(fmt::format("{}: GPU {}: {} bytes are free of {}, and {} are charged", trip.name, device, figures.free,
                     figures.total, own));
  }
}

}  // namespace

TEST_CASE("the GPU's memory is as large for cuDeviceTotalMem as for cuMemGetInfo, limit or none") {
  check("", [] { totals_agree(kGpuBytes); });
  check("64M", [] { totals_agree(kLimit); });
  check("1T", [] { totals_agree(kGpuBytes); });
}

TEST_CASE("under a limit, free memory is the limit less what was taken, by whichever route") {
  for (const Route& route : routes()) {
    for (const Mode mode : {Mode::kNative, Mode::kManaged, Mode::kSwap}) {
      const std::string report =
          on_simgpu({.mode = mode, .limit = "64M", .replace = {}, .neighbour = export_memory}, [&] {
            Trip trip(route);
            expect_figures(trip, 0);
            expect_figures(trip, 1);
            enter(0);
            trip.take(trip.scene);
            expect_figures(trip, 0);
            expect_figures(trip, 1);
          });
      INFO(route.name << ", " << name_of(mode) << ":\n" << report);
      CHECK(report.find("are charged") == std::string::npos);
      CHECK(report.find("not so") == std::string::npos);
    }
  }
}

TEST_CASE("what is said to be free can be taken, and no byte beyond the limit") {
  check("64M", [] {
    enter(0);
    for (int round = 0; round < 3; ++round) {
      CUdeviceptr all = 0;
      CUdeviceptr more = 0;
      EXPECT(info().free == kUsable);
      EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc_v2(&more, kLimit + 1));
      EXPECT_OK(cu.cuMemAlloc_v2(&all, info().free));
      EXPECT(info().free == 0);
      EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc_v2(&more, kLimit - kUsable + 1));
      EXPECT_OK(cu.cuMemFree_v2(all));
    }
  });
}

TEST_CASE("what a graph allocates is gone from the free memory until it is trimmed, captured or by a node") {
  for (const Route& route : routes()) {
    if (route.name != std::string("captured") && route.name != std::string("graph node")) continue;
    for (const Mode mode : {Mode::kNative, Mode::kManaged, Mode::kSwap}) {
      const std::string report = on_simgpu({.mode = mode, .limit = "3M", .replace = {}, .neighbour = {}}, [&] {
        Trip trip(route);
        const CUdeviceptr address = trip.take(trip.scene);
        EXPECT(charged_exactly(kCrossedBytes, 0));
        EXPECT(info().free == kMiB);
        CUdeviceptr more = 0;
        EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc_v2(&more, kMiB + 1));
        EXPECT_OK(cu.cuMemFree_v2(address));
        EXPECT(charged_exactly(kCrossedBytes, 0));
        for (CUgraphExec executable : trip.scene.executables) EXPECT_OK(cu.cuGraphExecDestroy(executable));
        for (CUgraph graph : trip.scene.graphs) EXPECT_OK(cu.cuGraphDestroy(graph));
        EXPECT_OK(cu.cuDeviceGraphMemTrim(0));
        EXPECT(info().free == 3 * kMiB);
        EXPECT_OK(cu.cuMemAlloc_v2(&more, kMiB + 1));
      });
      INFO(route.name << ", " << name_of(mode) << ":\n" << report);
      CHECK(report.find("not so") == std::string::npos);
    }
  }
}

TEST_CASE("what lies on one GPU leaves the other's figures alone") {
  check("64M", [] {
    enter(1);
    const Figures before = info();
    CUdeviceptr address = 0;
    enter(0);
    EXPECT_OK(cu.cuMemAlloc_v2(&address, 10 * kMiB));
    EXPECT(info().free == kUsable - 10 * kMiB);
    enter(1);
    EXPECT(info().free == before.free);
  });
}

TEST_CASE("a pool that the program made tells of what is used and reserved, and its marks agree") {
  check("64M", [] {
    enter(0);
    CUmemPoolProps what{};
    what.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemoryPool own = nullptr;
    CUmemoryPool standard = nullptr;
    EXPECT_OK(cu.cuMemPoolCreate(&own, &what));
    EXPECT_OK(cu.cuDeviceGetDefaultMemPool(&standard, 0));
    for (const CUmemoryPool pool : {own, standard}) {
      const auto mark = [&](CUmemPool_attribute attribute) {
        cuuint64_t value = 0;
        EXPECT_OK(cu.cuMemPoolGetAttribute(pool, attribute, &value));
        return value;
      };
      const auto expect_marks = [&](std::uint64_t used, std::uint64_t used_high) {
        EXPECT(mark(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == used);
        EXPECT(mark(CU_MEMPOOL_ATTR_USED_MEM_HIGH) == used_high);
        EXPECT(mark(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= used);
        EXPECT(mark(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= mark(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
        EXPECT(mark(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= used_high);
        EXPECT(charged_exactly(used, 0));
        EXPECT(info().free == kUsable - used);
      };
      expect_marks(0, 0);
      CUdeviceptr one = 0;
      CUdeviceptr two = 0;
      EXPECT_OK(cu.cuMemAllocFromPoolAsync(&one, 2 * kMiB, pool, nullptr));
      expect_marks(2 * kMiB, 2 * kMiB);
      EXPECT_OK(cu.cuMemAllocFromPoolAsync(&two, 4 * kMiB, pool, nullptr));
      expect_marks(6 * kMiB, 6 * kMiB);
      EXPECT_OK(cu.cuMemFreeAsync(one, nullptr));
      EXPECT_OK(cu.cuStreamSynchronize(nullptr));
      expect_marks(4 * kMiB, 6 * kMiB);
      EXPECT_OK(cu.cuMemFreeAsync(two, nullptr));
      EXPECT_OK(cu.cuStreamSynchronize(nullptr));
      EXPECT_OK(cu.cuMemPoolTrimTo(pool, 0));
      expect_marks(0, 6 * kMiB);
      EXPECT(mark(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
      cuuint64_t zero = 0;
      EXPECT_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
      EXPECT_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
      expect_marks(0, 0);
    }
    EXPECT_OK(cu.cuMemPoolDestroy(own));
  });
}

TEST_CASE("a pool gives back what it keeps once the program lowers its threshold, and keeps it once that is raised") {
  check("", [] {
    enter(0);
    CUmemoryPool pool = nullptr;
    EXPECT_OK(cu.cuDeviceGetDefaultMemPool(&pool, 0));
    const auto reserved_after_a_free = [&](cuuint64_t threshold) {
      EXPECT_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
      CUdeviceptr address = 0;
      EXPECT_OK(cu.cuMemAllocAsync(&address, kMiB, nullptr));
      cuuint64_t reserved = 0;
      EXPECT_OK(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
      EXPECT(reserved >= kMiB);
      EXPECT_OK(cu.cuMemFreeAsync(address, nullptr));
      EXPECT_OK(cu.cuStreamSynchronize(nullptr));
      EXPECT_OK(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
      return reserved;
    };
    EXPECT(reserved_after_a_free(0) == 0);
    EXPECT(reserved_after_a_free(UINT64_MAX) >= kMiB);
    EXPECT(reserved_after_a_free(0) == 0);
  });
}

TEST_CASE("memory of a place's current pool is charged to that place, of the host to none") {
  check("64M", [] {
    enter(1);
    for (const bool on_host : {true, false}) {
      CUmemLocation where{};
      where.type = on_host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
      where.id = 0;
      CUmemoryPool pool = nullptr;
      EXPECT_OK(cu.cuMemGetMemPool(&pool, &where, CU_MEM_ALLOCATION_TYPE_PINNED));
      CUdeviceptr address = 0;
      EXPECT_OK(cu.cuMemAllocFromPoolAsync(&address, kMiB, pool, nullptr));
      EXPECT(charged_exactly(on_host ? 0 : kMiB, 0));
      EXPECT_OK(cu.cuMemFree_v2(address));
      EXPECT_EMPTY_BOOKS();
    }
  });
}

TEST_CASE("an address tells of its allocation as without rota, from its middle as well") {
  const auto tell = [](const Route& route) {
    Trip trip(route);
    const CUdeviceptr address = trip.take(trip.scene);
    if (address == 0) return;
    for (const CUdeviceptr at : {address, address + 900}) {
      CUdeviceptr base = 0;
      std::size_t size = 0;
      const CUresult result = cu.cuMemGetAddressRange_v2(&base, &size, at);
      const auto from_base = [&](CUdeviceptr of) { return of == 0 ? "none" : std::to_string(address - of); };
      note(fmt::format("range {} {} {}", static_cast<int>(result), from_base(base), size));
      // The query for several attributes refuses none: the value of an attribute that does not apply stays unchanged.
      CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                     CU_POINTER_ATTRIBUTE_MAPPED};
      CUdeviceptr start = 0;
      std::size_t length = 0;
      int device = 9;
      unsigned type = 9;
      unsigned is_mapped = 9;
      void* values[] = {&start, &length, &device, &type, &is_mapped};
      const CUresult several = cu.cuPointerGetAttributes(5, which, values, at);
      note(fmt::format("attributes {} {} {} {} {} {}", static_cast<int>(several), from_base(start), length, device,
                       type, is_mapped));
      CUdeviceptr alone = 0;
      const CUresult one = cu.cuPointerGetAttribute(&alone, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at);
      EXPECT(one != CUDA_SUCCESS || alone == start);
    }
  };
  for (const Route& route : routes()) {
    const auto told = [&](Mode mode) {
      return on_simgpu({.mode = mode, .limit = "", .replace = {}, .neighbour = export_memory}, [&] { tell(route); });
    };
    INFO(route.name);
    const std::string bare = told(Mode::kBare);
    CHECK(bare.find("not so") == std::string::npos);
    CHECK(told(Mode::kNative) == bare);
    CHECK(told(Mode::kManaged) == bare);
  }
}
