#include "tests/unit/runtime/memory/on_simgpu/sweep_programs.h"

#include <algorithm>
#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/machine.h"

namespace rota::test {
namespace {

constexpr const char* kCode =
    "\x7f"
    "ELF";  // what simgpu takes for any code
constexpr std::size_t kSegment = 2 * kMiB;

// These programs exist to be refused; any other answer has to be success.
bool had(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return true;
  expect(result == CUDA_ERROR_OUT_OF_MEMORY, fmt::format("{} answers {}", call, static_cast<int>(result)), __FILE__,
         __LINE__);
  return false;
}
#define HAD(call) had((call), #call)

// A context that may be refused; nothing else of the program runs without it.
class Context {
 public:
  explicit Context(int device) : device_(device) {
    CUcontext context = nullptr;
    retained_ = HAD(cu.cuDevicePrimaryCtxRetain(&context, device));
    if (retained_) EXPECT_OK(cu.cuCtxSetCurrent(context));
  }
  ~Context() {
    if (retained_) EXPECT_OK(cu.cuDevicePrimaryCtxRelease_v2(device_));
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  explicit operator bool() const { return retained_; }

 private:
  int device_;
  bool retained_ = false;
};

// Null (the default stream) if it was refused.
class Stream {
 public:
  Stream() {
    if (!HAD(cu.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0))) stream_ = nullptr;
  }
  ~Stream() {
    if (stream_ != nullptr) EXPECT_OK(cu.cuStreamDestroy_v2(stream_));
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CUstream() const { return stream_; }  // NOLINT(google-explicit-constructor)

 private:
  CUstream stream_ = nullptr;
};

void expect_contents(CUdeviceptr address, unsigned expected) {
  unsigned word = 0;
  EXPECT_OK(cu.cuMemcpyDtoH_v2(&word, address, sizeof word));
  EXPECT(word == expected);
}

// Fills memory in a stream and checks it.
void use(CUdeviceptr address, CUstream stream, unsigned value) {
  EXPECT_OK(cu.cuMemsetD32Async(address, value, 64, stream));
  EXPECT_OK(cu.cuStreamSynchronize(stream));
  expect_contents(address, value);
}

// c10::cuda::CUDACachingAllocator: blocks of one size are cached and reused; after a refusal it frees them and asks
// once more.
class CachingAllocator {
 public:
  ~CachingAllocator() { empty_cache(); }
  CUdeviceptr take() {
    if (!kept_.empty()) {
      const CUdeviceptr address = kept_.back();
      kept_.pop_back();
      return address;
    }
    CUdeviceptr address = 0;
    if (HAD(cu.cuMemAlloc_v2(&address, kSegment))) return address;
    empty_cache();
    return HAD(cu.cuMemAlloc_v2(&address, kSegment)) ? address : 0;
  }
  void give(CUdeviceptr address) { kept_.push_back(address); }
  void empty_cache() {
    for (const CUdeviceptr address : kept_) EXPECT_OK(cu.cuMemFree_v2(address));
    kept_.clear();
  }

 private:
  std::vector<CUdeviceptr> kept_;
};

// Its expandable segment: one address range that grows and shrinks by physical allocations.
class ExpandableSegment {
 public:
  explicit ExpandableSegment(int device) : device_(device) {
    if (!HAD(cu.cuMemAddressReserve(&base_, 8 * kSegment, 0, 0, 0))) base_ = 0;
  }
  ~ExpandableSegment() {
    shrink(0);
    if (base_ != 0) EXPECT_OK(cu.cuMemAddressFree(base_, 8 * kSegment));
  }
  ExpandableSegment(const ExpandableSegment&) = delete;
  ExpandableSegment& operator=(const ExpandableSegment&) = delete;

  bool grow() {
    if (base_ == 0) return false;
    CUmemAllocationProp what{};
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_};
    CUmemGenericAllocationHandle handle = 0;
    if (!HAD(cu.cuMemCreate(&handle, kSegment, &what, 0))) return false;
    const CUdeviceptr address = end();
    if (!HAD(cu.cuMemMap(address, kSegment, 0, handle, 0))) {
      EXPECT_OK(cu.cuMemRelease(handle));
      return false;
    }
    CUmemAccessDesc access{};
    access.location = what.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (!HAD(cu.cuMemSetAccess(address, kSegment, &access, 1))) {
      EXPECT_OK(cu.cuMemUnmap(address, kSegment));
      EXPECT_OK(cu.cuMemRelease(handle));
      return false;
    }
    handles_.push_back(handle);
    return true;
  }
  void shrink(std::size_t pieces) {
    while (handles_.size() > pieces) {
      EXPECT_OK(cu.cuMemUnmap(end() - kSegment, kSegment));
      EXPECT_OK(cu.cuMemRelease(handles_.back()));
      handles_.pop_back();
    }
  }
  CUdeviceptr end() const { return base_ + handles_.size() * kSegment; }

 private:
  int device_;
  CUdeviceptr base_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_;
};

void pinned_round_trip(CUdeviceptr address, CUstream stream) {
  void* host = nullptr;
  if (!HAD(cu.cuMemHostAlloc(&host, kSegment, 0))) return;
  static_cast<unsigned*>(host)[0] = 31;
  EXPECT_OK(cu.cuMemcpyHtoDAsync_v2(address, host, 4096, stream));
  EXPECT_OK(cu.cuStreamSynchronize(stream));
  expect_contents(address, 31);
  EXPECT_OK(cu.cuMemFreeHost(host));
}

void in_stream_order(CUmemoryPool pool, CUstream stream) {
  std::vector<CUdeviceptr> blocks;
  for (unsigned round = 0; round < 4; ++round) {
    CUdeviceptr address = 0;
    const bool given = pool == nullptr ? HAD(cu.cuMemAllocAsync(&address, kSegment, stream))
                                       : HAD(cu.cuMemAllocFromPoolAsync(&address, kSegment, pool, stream));
    if (!given) continue;
    use(address, stream, round);
    blocks.push_back(address);
  }
  for (const CUdeviceptr address : blocks) EXPECT_OK(cu.cuMemFreeAsync(address, stream));
  EXPECT_OK(cu.cuStreamSynchronize(stream));
}

// A step that allocates and frees its scratch memory within the graph.
void captured_step(CUdeviceptr result) {
  Stream stream;
  if (stream == nullptr) return;
  EXPECT_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUdeviceptr scratch = 0;
  if (HAD(cu.cuMemAllocAsync(&scratch, kSegment, stream))) {
    EXPECT_OK(cu.cuMemsetD32Async(scratch, 5, 64, stream));
    EXPECT_OK(cu.cuMemcpyDtoDAsync_v2(result, scratch, 256, stream));
    EXPECT_OK(cu.cuMemFreeAsync(scratch, stream));
  } else {
    EXPECT_OK(cu.cuMemsetD32Async(result, 5, 64, stream));
  }
  CUgraph graph = nullptr;
  EXPECT_OK(cu.cuStreamEndCapture(stream, &graph));
  CUgraphExec executable = nullptr;
  if (HAD(cu.cuGraphInstantiateWithFlags(&executable, graph, 0))) {
    for (int launch = 0; launch < 2; ++launch) {
      if (HAD(cu.cuGraphLaunch(executable, stream))) {
        EXPECT_OK(cu.cuStreamSynchronize(stream));
        expect_contents(result, 5);
      }
    }
    EXPECT_OK(cu.cuGraphExecDestroy(executable));
  }
  EXPECT_OK(cu.cuGraphDestroy(graph));
}

void launch_fill(CUmodule code, CUdeviceptr address, CUstream stream) {
  CUfunction fill = nullptr;
  EXPECT_OK(cu.cuModuleGetFunction(&fill, code, "_Z4fillPjmj"));
  unsigned long count = 64;
  unsigned value = 9;
  void* arguments[] = {&address, &count, &value};
  if (!HAD(cu.cuLaunchKernel(fill, 1, 1, 1, 64, 1, 1, 0, stream, arguments, nullptr))) return;
  EXPECT_OK(cu.cuStreamSynchronize(stream));
  expect_contents(address, 9);
}

void load_and_launch(CUdeviceptr address, CUstream stream) {
  CUmodule code = nullptr;
  if (!HAD(cu.cuModuleLoadData(&code, kCode))) return;
  launch_fill(code, address, stream);
  EXPECT_OK(cu.cuModuleUnload(code));
}

}  // namespace

void run_like_pytorch() {
  Context context(0);
  if (!context) return;
  {
    CachingAllocator allocator;
    Stream compute;
    Stream copies;
    std::vector<CUdeviceptr> tensors;
    for (unsigned layer = 0; layer < 6; ++layer) {
      const CUdeviceptr tensor = allocator.take();
      if (tensor == 0) continue;
      use(tensor, compute, layer);
      tensors.push_back(tensor);
    }
    if (!tensors.empty()) {
      pinned_round_trip(tensors.front(), copies);
      load_and_launch(tensors.front(), compute);
      captured_step(tensors.front());
      // A block that another stream uses is not reused before its event has passed.
      CUevent used = nullptr;
      if (HAD(cu.cuEventCreate(&used, CU_EVENT_DISABLE_TIMING))) {
        EXPECT_OK(cu.cuEventRecord(used, copies));
        EXPECT_OK(cu.cuEventSynchronize(used));
        EXPECT_OK(cu.cuEventDestroy_v2(used));
      }
    }
    for (const CUdeviceptr tensor : tensors) allocator.give(tensor);
    for (int step = 0; step < 2; ++step) {
      const CUdeviceptr again = allocator.take();
      if (again != 0) allocator.give(again);
    }
    ExpandableSegment segment(0);
    for (int piece = 0; piece < 4; ++piece) {
      if (segment.grow()) use(segment.end() - kSegment, compute, 3);
    }
    segment.shrink(1);
    segment.grow();
    in_stream_order(nullptr, compute);
    // Images and linear algebra: a pitched block, freed in the stream's order, and an array.
    CUdeviceptr pitched = 0;
    std::size_t pitch = 0;
    if (HAD(cu.cuMemAllocPitch_v2(&pitched, &pitch, 1000, 100, 16))) EXPECT_OK(cu.cuMemFreeAsync(pitched, compute));
    const CUDA_ARRAY3D_DESCRIPTOR shape{256, 256, 0, CU_AD_FORMAT_FLOAT, 4, 0};
    CUarray image = nullptr;
    if (HAD(cu.cuArray3DCreate_v2(&image, &shape))) EXPECT_OK(cu.cuArrayDestroy(image));
    EXPECT_OK(cu.cuCtxSynchronize());
    EXPECT_OK(cu.cuDeviceGraphMemTrim(0));
  }
}

void run_like_jax() {
  Context other(1);
  Context context(0);
  if (!context || !other) return;
  {
    // Three quarters of the GPU; where that is refused, a tenth less, and so on.
    std::size_t total = 0;
    EXPECT_OK(cu.cuDeviceTotalMem_v2(&total, 0));
    CUdeviceptr arena = 0;
    std::size_t bytes = total / 4 * 3;
    while (bytes > kSegment && !HAD(cu.cuMemAlloc_v2(&arena, bytes))) bytes = bytes / 10 * 9;
    if (!EXPECT(arena != 0)) return;
    Stream compute;
    Stream transfers;
    use(arena, compute, 1);
    pinned_round_trip(arena, transfers);
    CUmodule code = nullptr;
    for (int executable = 0; executable < 3; ++executable) {
      if (!HAD(cu.cuModuleLoadData(&code, kCode))) continue;
      launch_fill(code, arena + 4096, compute);
      EXPECT_OK(cu.cuModuleUnload(code));
    }
    // A command buffer.
    CUgraph graph = nullptr;
    if (HAD(cu.cuGraphCreate(&graph, 0))) {
      CUgraphNode node = nullptr;
      CUDA_MEMSET_NODE_PARAMS set{};
      set.dst = arena;
      set.value = 21;
      set.elementSize = 4;
      set.width = 64;
      set.height = 1;
      CUcontext current = nullptr;
      EXPECT_OK(cu.cuCtxGetCurrent(&current));
      CUgraphExec executable = nullptr;
      if (HAD(cu.cuGraphAddMemsetNode(&node, graph, nullptr, 0, &set, current)) &&
          HAD(cu.cuGraphInstantiateWithFlags(&executable, graph, 0))) {
        if (HAD(cu.cuGraphLaunch(executable, compute))) {
          EXPECT_OK(cu.cuStreamSynchronize(compute));
          expect_contents(arena, 21);
        }
        EXPECT_OK(cu.cuGraphExecDestroy(executable));
      }
      EXPECT_OK(cu.cuGraphDestroy(graph));
    }
    // Its own pool of temporary memory, some of it of the program's managed kind.
    CUmemPoolProps what{};
    what.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemoryPool pool = nullptr;
    if (HAD(cu.cuMemPoolCreate(&pool, &what))) {
      in_stream_order(pool, compute);
      EXPECT_OK(cu.cuMemPoolDestroy(pool));
    }
    CUdeviceptr unified = 0;
    if (HAD(cu.cuMemAllocManaged(&unified, kSegment, CU_MEM_ATTACH_GLOBAL))) {
      use(unified, compute, 8);
      EXPECT_OK(cu.cuMemFree_v2(unified));
    }
    ExpandableSegment collective(1);
    collective.grow();
    EXPECT_OK(cu.cuMemFree_v2(arena));
  }
}

}  // namespace rota::test
