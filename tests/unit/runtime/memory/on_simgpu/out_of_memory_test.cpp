// Allocations that are refused for lack of memory, by every route (crossing.h), at a limit and on a full GPU: the error
// is the driver's, and a program that frees something can go on.
#include <catch2/catch.hpp>

#include <set>

#include "generated/driver_real.h"
#include "tests/unit/runtime/memory/on_simgpu/crossing.h"
#include "tests/unit/runtime/memory/on_simgpu/matrix.h"

using namespace rota;
using namespace rota::test;

namespace {

constexpr std::uint64_t kLimit = 64 * kMiB;

Scene new_scene() {
  Scene scene;
  scene.other = enter(1);
  EXPECT_OK(cu.cuStreamCreate(&scene.stream_of_other, CU_STREAM_NON_BLOCKING));
  scene.context = enter(0);
  EXPECT_OK(cu.cuStreamCreate(&scene.stream, CU_STREAM_NON_BLOCKING));
  return scene;
}

// Tries every call that may free the address, and destroys what else the route has made.
void give_back(Scene& scene, CUdeviceptr address) {
  enter(0);
  EXPECT_OK(cu.cuCtxSynchronize());
  cu.cuMemFree_v2(address);
  cu.cuMemFreeHost(reinterpret_cast<void*>(address));
  cu.cuMemHostUnregister(reinterpret_cast<void*>(address));
  cu.cuIpcCloseMemHandle(address);
  cu.cuMemUnmap(address, kCrossedBytes);
  cu.cuMemAddressFree(address, kCrossedBytes);
  for (CUgraphExec executable : scene.executables) cu.cuGraphExecDestroy(executable);
  for (CUgraph graph : scene.graphs) cu.cuGraphDestroy(graph);
  scene.executables.clear();
  scene.graphs.clear();
  if (scene.pool != nullptr) EXPECT_OK(cu.cuMemPoolDestroy(scene.pool));
  scene.pool = nullptr;
  for (const int device : {1, 0}) {
    enter(device);
    EXPECT_OK(cu.cuCtxSynchronize());
    EXPECT_OK(cu.cuDeviceGraphMemTrim(device));
  }
}

std::uint64_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_OK(cu.cuMemGetInfo_v2(&free, &total));
  return free;
}

// How many bytes the route takes of each GPU.
struct Charge {
  std::uint64_t gpu[2];
};

// Allocates all but `left` bytes of what the limit of a GPU allows. cuMemGetInfo shows no more than that as free: it
// subtracts the context as well.
CUdeviceptr fill(int device, std::uint64_t left) {
  enter(device);
  CUdeviceptr filler = 0;
  EXPECT_OK(cu.cuMemAlloc_v2(&filler, kLimit - charged(device) - left));
  EXPECT(free_bytes() <= left);
  enter(0);
  return filler;
}

// The program uses the GPU: if a refusal had damaged its context, one of these calls would fail.
void go_on() {
  enter(0);
  CUdeviceptr address = 0;
  unsigned word = 0;
  EXPECT_OK(cu.cuMemAlloc_v2(&address, 4096));
  EXPECT_OK(cu.cuMemsetD32_v2(address, 77, 1024));
  EXPECT_OK(cu.cuMemcpyDtoH_v2(&word, address + 4092, sizeof word));
  EXPECT(word == 77);
  EXPECT_OK(cu.cuMemFree_v2(address));
}

// Under a limit of 64 MiB. Graphs are counted, but their launches are not refused.
void at_the_limit(const Route& route, bool refused_by_rota) {
  Scene scene = new_scene();
  const CUdeviceptr first = route.take(scene);
  const Charge charge{{charged(0), charged(1)}};
  const CUresult without_shortage = first_error();
  give_back(scene, first);
  EXPECT_EMPTY_BOOKS();
  for (const int device : {0, 1}) {
    const std::uint64_t bytes = charge.gpu[device];
    if (bytes == 0) continue;
    const CUdeviceptr filler = fill(device, bytes - 1);
    const CUdeviceptr refused = route.take(scene);
    EXPECT_RESULT(refused_by_rota ? CUDA_ERROR_OUT_OF_MEMORY : without_shortage, first_error());
    enter(device);
    EXPECT(free_bytes() <= (refused_by_rota ? bytes - 1 : 0));
    EXPECT_OK(cu.cuMemFree_v2(filler));
    give_back(scene, refused_by_rota ? 0 : refused);
    EXPECT_EMPTY_BOOKS();
    go_on();
    const CUdeviceptr again = route.take(scene);
    EXPECT_RESULT(without_shortage, first_error());
    EXPECT(charged(device) == bytes);
    give_back(scene, again);
    EXPECT_EMPTY_BOOKS();
  }
  go_on();
}

// Without a limit: notes what the route answers once no plain allocation fits on GPU 0 any more, not even of one byte,
// and what it answers after those have been freed.
void at_the_end_of_the_gpu(const Route& route) {
  Scene scene = new_scene();
  std::vector<CUdeviceptr> fillers;
  for (std::uint64_t bytes = kGpuBytes; bytes > 0; bytes /= 2) {
    CUdeviceptr filler = 0;
    while (cu.cuMemAlloc_v2(&filler, bytes) == CUDA_SUCCESS) fillers.push_back(filler);
  }
  first_error();
  const CUdeviceptr refused = route.take(scene);
  note(fmt::format("short of memory: {}", static_cast<int>(first_error())));
  for (const CUdeviceptr filler : fillers) EXPECT_OK(cu.cuMemFree_v2(filler));
  give_back(scene, refused);
  EXPECT_EMPTY_BOOKS();
  go_on();
  const CUdeviceptr again = route.take(scene);
  note(fmt::format("with enough memory: {}", static_cast<int>(first_error())));
  give_back(scene, again);
  EXPECT_EMPTY_BOOKS();
}

std::string lines_with(const std::string& text, const std::string& what) {
  std::string found;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    if (line.find(what) != std::string::npos) found += line + "\n";
    begin = end + 1;
  }
  return found;
}

bool of_graph(const Route& route) {
  return route.name == std::string("captured") || route.name == std::string("graph node");
}

}  // namespace

TEST_CASE("no route but a graph's exceeds a limit, and a program that is refused frees something and goes on") {
  for (const Route& route : routes()) {
    for (const Mode mode : {Mode::kNative, Mode::kManaged, Mode::kSwap}) {
      const std::string report = on_simgpu({.mode = mode, .limit = "64M", .replace = {}, .neighbour = export_memory},
                                           [&] { at_the_limit(route, !of_graph(route)); });
      INFO(route.name << ", " << name_of(mode) << ":\n" << report);
      CHECK(report.find("not so") == std::string::npos);
      CHECK(report.find("killed") == std::string::npos);
    }
  }
}

TEST_CASE("an array that would exceed the limit is refused, and is made once there is memory for it") {
  const CUDA_ARRAY3D_DESCRIPTOR shape{1024, 512, 0, CU_AD_FORMAT_FLOAT, 1, 0};  // 2 MiB
  for (const Mode mode : {Mode::kNative, Mode::kManaged, Mode::kSwap}) {
    const std::string report = on_simgpu({.mode = mode, .limit = "5M", .replace = {}, .neighbour = {}}, [&] {
      enter(0);
      CUarray one = nullptr;
      CUarray two = nullptr;
      CUmipmappedArray levels = nullptr;
      EXPECT_OK(cu.cuArray3DCreate_v2(&one, &shape));
      EXPECT_OK(cu.cuArray3DCreate_v2(&two, &shape));
      EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMipmappedArrayCreate(&levels, &shape, 3));
      EXPECT(free_bytes() == kMiB);
      EXPECT_OK(cu.cuArrayDestroy(one));
      EXPECT_OK(cu.cuMipmappedArrayCreate(&levels, &shape, 3));
      EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuArray3DCreate_v2(&one, &shape));
      EXPECT_OK(cu.cuArrayDestroy(two));
      EXPECT_OK(cu.cuMipmappedArrayDestroy(levels));
      EXPECT_EMPTY_BOOKS();
      go_on();
    });
    CHECK(report == "");
  }
}

TEST_CASE("freed memory that swap mode caches goes back to the driver when an array or a context needs it") {
  const std::string report =
      on_simgpu({.mode = Mode::kSwap, .limit = "", .replace = {}, .neighbour = {}, .gpu_bytes = 512 * kMiB}, [] {
        constexpr std::uint64_t kKept = 8 * kMiB;  // the most that is cached on such a GPU
        const auto left = [] {
          std::size_t free = 0;
          std::size_t total = 0;
          EXPECT_OK(real::cuMemGetInfo_v2(&free, &total));
          return free;
        };
        enter(0);
        CUdeviceptr kept = 0;
        EXPECT_OK(cu.cuMemAlloc_v2(&kept, kKept));
        EXPECT_OK(cu.cuMemFree_v2(kept));
        CUdeviceptr others = 0;
        EXPECT_OK(real::cuMemAlloc_v2(&others, left()));  // as a program without rota would
        EXPECT(left() == 0);
        const CUDA_ARRAY_DESCRIPTOR shape{1024, 1024, CU_AD_FORMAT_FLOAT, 1};
        CUarray array = nullptr;
        EXPECT_OK(cu.cuArrayCreate_v2(&array, &shape));
        EXPECT_OK(cu.cuArrayDestroy(array));
        // The same for a context.
        EXPECT_OK(real::cuMemFree_v2(others));
        EXPECT_OK(cu.cuMemAlloc_v2(&kept, kKept));
        EXPECT_OK(cu.cuMemFree_v2(kept));
        EXPECT_OK(real::cuMemAlloc_v2(&others, left()));
        CUcontext second = nullptr;
        EXPECT_OK(cu.cuCtxCreate_v2(&second, 0, 0));
        EXPECT_OK(cu.cuCtxDestroy_v2(second));
        EXPECT_OK(real::cuMemFree_v2(others));
      });
  CHECK(report == "");
}

TEST_CASE("rota leaves it to the driver to refuse what no GPU could hold, since other errors come first") {
  for (const Mode mode : {Mode::kBare, Mode::kNative, Mode::kManaged, Mode::kSwap}) {
    for (const char* limit : {"", "5M"}) {
      const std::string report = on_simgpu({.mode = mode, .limit = limit, .replace = {}, .neighbour = {}}, [] {
        enter(0);
        const CUDA_ARRAY3D_DESCRIPTOR vast{1 << 19, 1 << 19, 1 << 19, CU_AD_FORMAT_FLOAT, 1, 0};
        CUarray array = nullptr;
        CUmipmappedArray levels = nullptr;
        EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuArray3DCreate_v2(&array, &vast));
        EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMipmappedArrayCreate(&levels, &vast, 2));
        // 32-bit addresses are not simulated.
        CUdeviceptr_v1 address = 0;
        EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, cu.cuMemAlloc(&address, ~0U));
        // A valid shape that is larger than the GPU.
        const CUDA_ARRAY3D_DESCRIPTOR large{16384, 16384, 0, CU_AD_FORMAT_FLOAT, 1, 0};
        EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuArray3DCreate_v2(&array, &large));
        EXPECT_EMPTY_BOOKS();
      });
      CHECK(report == "");
    }
  }
}

TEST_CASE("an allocation from a destroyed pool fails with the driver's error, also beyond a limit") {
  for (const Mode mode : {Mode::kBare, Mode::kNative, Mode::kManaged, Mode::kSwap}) {
    for (const char* limit : {"", "64M"}) {
      const std::string report = on_simgpu({.mode = mode, .limit = limit, .replace = {}, .neighbour = {}}, [] {
        enter(0);
        CUmemPoolProps what{};
        what.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
        CUmemoryPool pool = nullptr;
        EXPECT_OK(cu.cuMemPoolCreate(&pool, &what));
        CUdeviceptr address = 0;
        EXPECT_OK(cu.cuMemAllocFromPoolAsync(&address, kMiB, pool, nullptr));
        EXPECT_OK(cu.cuMemFreeAsync(address, nullptr));
        EXPECT_OK(cu.cuCtxSynchronize());
        EXPECT_OK(cu.cuMemPoolDestroy(pool));
        for (const std::uint64_t bytes : {std::uint64_t{1}, 16 * kMiB, 128 * kMiB, std::uint64_t{1} << 50}) {
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemAllocFromPoolAsync(&address, bytes, pool, nullptr));
        }
        EXPECT_EMPTY_BOOKS();
        go_on();
      });
      INFO(name_of(mode) << ", limit '" << limit << "'");
      CHECK(report == "");
    }
  }
}

TEST_CASE("on a full GPU every route answers as without rota, and does so again once memory is freed") {
  for (const Route& route : routes()) {
    const auto told = [&](Mode mode) {
      return on_simgpu({.mode = mode, .limit = "", .replace = {}, .neighbour = export_memory},
                       [&] { at_the_end_of_the_gpu(route); });
    };
    const std::string bare = told(Mode::kBare);
    INFO(route.name << ":\n" << bare);
    CHECK(lines_with(bare, "not so") == "");
    CHECK(lines_with(bare, "short of memory").size() > 0);
    for (const Mode mode : {Mode::kNative, Mode::kManaged, Mode::kSwap}) {
      const std::string with = told(mode);
      INFO(name_of(mode) << ":\n" << with);
      CHECK(lines_with(with, "not so") == "");
      // rota refuses no graph, and the driver has memory for it: unused Unified Memory takes none of the GPU, and swap
      // memory leaves free what a context is assumed to take, which is more than one of simgpu's takes.
      if (!(mode != Mode::kNative && of_graph(route))) {
        CHECK(lines_with(with, "short of memory") == lines_with(bare, "short of memory"));
      }
      CHECK(lines_with(with, "with enough memory") == lines_with(bare, "with enough memory"));
    }
  }
}

TEST_CASE("memory that was freed in stream order serves allocations of any kind and size") {
  for (const bool in_order : {false, true}) {
    for (const std::size_t each : {2 * kMiB, 4 * kMiB, 80 * kMiB}) {
      const std::string report = on_simgpu({.mode = Mode::kSwap, .limit = "", .replace = {}, .neighbour = {}}, [&] {
        enter(0);
        CUstream stream = nullptr;
        EXPECT_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        std::vector<CUdeviceptr> blocks(160 * kMiB / each);
        for (CUdeviceptr& block : blocks) EXPECT_OK(cu.cuMemAllocAsync(&block, each, stream));
        for (const CUdeviceptr block : blocks) EXPECT_OK(cu.cuMemFreeAsync(block, stream));
        EXPECT_OK(cu.cuStreamSynchronize(stream));
        CUdeviceptr large = 0;
        EXPECT_OK(in_order ? cu.cuMemAllocAsync(&large, 150 * kMiB, stream) : cu.cuMemAlloc_v2(&large, 150 * kMiB));
        EXPECT_OK(cu.cuMemFree_v2(large));
      });
      CHECK(report == "");
    }
  }
}
