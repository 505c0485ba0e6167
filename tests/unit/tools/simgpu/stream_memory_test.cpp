// Memory in stream order: pools, memory of graphs, and what calls that are refused leave as it was.
#include <catch2/catch.hpp>

#include "tests/unit/tools/simgpu/with_driver.h"

using namespace simgpu_test;

namespace {

CUDA_MEM_ALLOC_NODE_PARAMS graph_allocation(size_t bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  parameters.bytesize = bytes;
  return parameters;
}

constexpr size_t kMega = size_t{1} << 20;

}  // namespace

TEST_CASE("a pool that can be exported allocates more in its life than its file is long") {
  TemporaryFolder folder;
  Child child([&]() -> std::string {
    Library library(folder.file("state"), "64G");
    CUcontext context = nullptr;
    EXPECT_OK(CU(cuInit)(0));
    EXPECT_OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
    EXPECT_OK(CU(cuCtxSetCurrent)(context));
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemoryPool pool = nullptr;
    EXPECT_OK(CU(cuMemPoolCreate)(&pool, &properties));
    for (int round = 0; round < 100; ++round) {  // 4 TiB hold 81 of them
      CUdeviceptr address = 0;
      EXPECT_OK(CU(cuMemAllocFromPoolAsync)(&address, 50 * 1024 * kMega, pool, nullptr));
      EXPECT_OK(CU(cuMemFreeAsync)(address, nullptr));
      EXPECT_OK(CU(cuStreamSynchronize)(nullptr));
    }
    return "";
  });
  CHECK(child.wait() == "");
}

TEST_CASE("what a pool keeps unused makes room for exportable memory, arrays and graph memory") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUmemoryPool pool = nullptr;
          uint64_t threshold = UINT64_MAX;
          EXPECT_OK(CU(cuDeviceGetDefaultMemPool)(&pool, 0));
          EXPECT_OK(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
          auto fill_pool = [&]() -> std::string {
            CUdeviceptr address = 0;
            EXPECT_OK(CU(cuMemAllocAsync)(&address, 40 * kMega, nullptr));
            EXPECT_OK(CU(cuMemFreeAsync)(address, nullptr));
            EXPECT_OK(CU(cuStreamSynchronize)(nullptr));
            return "";
          };
          EXPECT(fill_pool().empty());
          CUmemAllocationProp properties{};
          properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
          properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
          properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
          CUmemGenericAllocationHandle memory = 0;
          EXPECT_OK(CU(cuMemCreate)(&memory, 40 * kMega, &properties, 0));
          EXPECT_OK(CU(cuMemRelease)(memory));
          EXPECT(fill_pool().empty());
          CUDA_ARRAY_DESCRIPTOR description{};
          description.Width = 10 * 1024;
          description.Height = 1024;
          description.Format = CU_AD_FORMAT_UNSIGNED_INT32;
          description.NumChannels = 1;
          CUarray array = nullptr;
          EXPECT_OK(CU(cuArrayCreate_v2)(&array, &description));
          EXPECT_OK(CU(cuArrayDestroy)(array));
          EXPECT(fill_pool().empty());
          CUgraph graph = nullptr;
          CUgraphNode node = nullptr;
          CUgraphExec executable = nullptr;
          auto allocation = graph_allocation(40 * kMega);
          EXPECT_OK(CU(cuGraphCreate)(&graph, 0));
          EXPECT_OK(CU(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, &allocation));
          EXPECT_OK(CU(cuGraphInstantiateWithFlags)(&executable, graph, 0));
          EXPECT_OK(CU(cuGraphLaunch)(executable, nullptr));
          return "";
        }) == "");
}

TEST_CASE("a free that is refused can be asked for again") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUgraph graph = nullptr;
          CUgraph captured = nullptr;
          CUgraphNode allocated = nullptr;
          CUgraphNode freed = nullptr;
          auto nowhere = reinterpret_cast<CUgraphNode>(uintptr_t{0x1234});
          auto allocation = graph_allocation(kMega);
          EXPECT_OK(CU(cuGraphCreate)(&graph, 0));
          EXPECT_OK(CU(cuGraphAddMemAllocNode)(&allocated, graph, nullptr, 0, &allocation));
          EXPECT(CU(cuGraphAddMemFreeNode)(&freed, graph, &nowhere, 1, allocation.dptr) != CUDA_SUCCESS);
          EXPECT_OK(CU(cuGraphAddMemFreeNode)(&freed, graph, &allocated, 1, allocation.dptr));
          // The legacy stream takes nothing while a blocking stream captures.
          CUdeviceptr address = 0;
          CUstream stream = nullptr;
          EXPECT_OK(CU(cuMemAlloc_v2)(&address, kMega));
          EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_DEFAULT));
          EXPECT_OK(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
          EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CU(cuMemFreeAsync)(address, nullptr));
          CU(cuStreamEndCapture)(stream, &captured);
          EXPECT_OK(CU(cuMemFreeAsync)(address, stream));
          return "";
        }) == "");
}

TEST_CASE("a launch whose memory does not fit keeps none of it") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUgraph graph = nullptr;
          CUgraphNode node = nullptr;
          CUgraphExec executable = nullptr;
          EXPECT_OK(CU(cuGraphCreate)(&graph, 0));
          for (int part = 0; part < 3; ++part) {
            auto allocation = graph_allocation(25 * kMega);
            EXPECT_OK(CU(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, &allocation));
          }
          EXPECT_OK(CU(cuGraphInstantiateWithFlags)(&executable, graph, 0));
          EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, CU(cuGraphLaunch)(executable, nullptr));
          CUdeviceptr address = 0;
          EXPECT_OK(CU(cuMemAlloc_v2)(&address, 50 * kMega));
          return "";
        }) == "");
}

TEST_CASE("memory of graphs and of pools outlives the last context of the GPU") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUcontext context = nullptr;
          CUgraph graph = nullptr;
          CUgraphNode node = nullptr;
          CUgraphExec executable = nullptr;
          CUdeviceptr address = 0;
          CUdeviceptr other = 0;
          auto allocation = graph_allocation(40 * kMega);
          EXPECT_OK(CU(cuGraphCreate)(&graph, 0));
          EXPECT_OK(CU(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, &allocation));
          EXPECT_OK(CU(cuGraphInstantiateWithFlags)(&executable, graph, 0));
          EXPECT_OK(CU(cuGraphLaunch)(executable, nullptr));
          EXPECT_OK(CU(cuGraphExecDestroy)(executable));
          EXPECT_OK(CU(cuGraphDestroy)(graph));
          EXPECT_OK(CU(cuMemAllocAsync)(&address, kMega, nullptr));
          EXPECT_OK(CU(cuDevicePrimaryCtxReset_v2)(0));
          EXPECT_OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
          EXPECT_OK(CU(cuCtxSetCurrent)(context));
          EXPECT_OK(CU(cuMemsetD8_v2)(address, 1, kMega));
          EXPECT_OK(CU(cuMemFree_v2)(address));
          EXPECT_OK(CU(cuMemsetD8_v2)(allocation.dptr, 1, kMega));
          EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAlloc_v2)(&other, 40 * kMega));
          EXPECT_OK(CU(cuMemFree_v2)(allocation.dptr));
          // Kept for other graphs until it is trimmed.
          EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAlloc_v2)(&other, 40 * kMega));
          EXPECT_OK(CU(cuDeviceGraphMemTrim)(0));
          EXPECT_OK(CU(cuMemAlloc_v2)(&other, 40 * kMega));
          return "";
        }) == "");
}

TEST_CASE("a free of graph memory that is refused leaves it as it was") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUstream stream = nullptr;
          CUgraph graph = nullptr;
          CUgraphNode node = nullptr;
          CUgraphExec executable = nullptr;
          CUgraph captured = nullptr;
          auto allocation = graph_allocation(4 * kMega);
          EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_DEFAULT));
          EXPECT_OK(CU(cuGraphCreate)(&graph, 0));
          EXPECT_OK(CU(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, &allocation));
          EXPECT_OK(CU(cuGraphInstantiateWithFlags)(&executable, graph, 0));
          EXPECT_OK(CU(cuGraphLaunch)(executable, stream));
          EXPECT_OK(CU(cuStreamSynchronize)(stream));
          EXPECT_OK(CU(cuGraphExecDestroy)(executable));
          EXPECT_OK(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
          EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CU(cuMemFreeAsync)(allocation.dptr, nullptr));
          CU(cuStreamEndCapture)(stream, &captured);
          uint64_t used = 0;
          EXPECT_OK(CU(cuDeviceGetGraphMemAttribute)(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
          EXPECT(used == 4 * kMega);
          EXPECT_OK(CU(cuMemFreeAsync)(allocation.dptr, stream));
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, CU(cuMemFreeAsync)(allocation.dptr, stream));
          return "";
        }) == "");
}

TEST_CASE("memory of a pool whose free is refused is the same buffer with the same attributes") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUstream stream = nullptr;
          CUdeviceptr address = 0;
          CUgraph captured = nullptr;
          unsigned long long before = 0;
          unsigned long long after = 0;
          unsigned on = 1;
          unsigned synchronous = 0;
          EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_DEFAULT));
          EXPECT_OK(CU(cuMemAllocAsync)(&address, kMega, stream));
          EXPECT_OK(CU(cuStreamSynchronize)(stream));
          EXPECT_OK(CU(cuPointerGetAttribute)(&before, CU_POINTER_ATTRIBUTE_BUFFER_ID, address));
          EXPECT_OK(CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
          EXPECT_OK(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
          EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CU(cuMemFreeAsync)(address, nullptr));
          CU(cuStreamEndCapture)(stream, &captured);
          EXPECT_OK(CU(cuPointerGetAttribute)(&after, CU_POINTER_ATTRIBUTE_BUFFER_ID, address));
          EXPECT_OK(CU(cuPointerGetAttribute)(&synchronous, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
          EXPECT(after == before);
          EXPECT(synchronous == 1);
          return "";
        }) == "");
}

TEST_CASE("a free in a stream of another context takes that memory only, not what has its address later") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUcontext primary = nullptr;
          CUcontext other = nullptr;
          CUstream stream = nullptr;
          CUdeviceptr address = 0;
          CUdeviceptr later = 0;
          Gate gate;
          EXPECT_OK(CU(cuCtxGetCurrent)(&primary));
          EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
          EXPECT_OK(CU(cuCtxCreate_v2)(&other, 0, 0));
          EXPECT_OK(CU(cuMemAlloc_v2)(&address, kMega));
          EXPECT_OK(CU(cuCtxSetCurrent)(primary));
          EXPECT_OK(CU(cuLaunchHostFunc)(stream, &Gate::hold, &gate));
          EXPECT_OK(CU(cuMemFreeAsync)(address, stream));
          EXPECT_OK(CU(cuCtxDestroy_v2)(other));
          EXPECT_OK(CU(cuMemAlloc_v2)(&later, kMega));
          EXPECT(later == address);
          gate.release();
          EXPECT_OK(CU(cuStreamSynchronize)(stream));
          EXPECT_OK(CU(cuMemFree_v2)(later));
          return "";
        }) == "");
}

TEST_CASE("a refused record leaves an interprocess event with the record that it had") {
  CHECK(with_driver([](Library& library) -> std::string {
          CUstream blocking = nullptr;
          CUstream stream = nullptr;
          CUevent event = nullptr;
          CUgraph captured = nullptr;
          Gate gate;
          CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
          EXPECT_OK(CU(cuThreadExchangeStreamCaptureMode)(&mode));
          EXPECT_OK(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
          EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
          EXPECT_OK(CU(cuEventCreate)(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
          EXPECT_OK(CU(cuLaunchHostFunc)(stream, &Gate::hold, &gate));
          EXPECT_OK(CU(cuEventRecord)(event, stream));
          EXPECT_OK(CU(cuStreamBeginCapture_v2)(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
          EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CU(cuEventRecord)(event, nullptr));
          CU(cuStreamEndCapture)(blocking, &captured);
          EXPECT_RESULT(CUDA_ERROR_NOT_READY, CU(cuEventQuery)(event));
          gate.release();
          EXPECT_OK(CU(cuEventSynchronize)(event));
          return "";
        }) == "");
}
