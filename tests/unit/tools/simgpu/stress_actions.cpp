#include "tests/unit/tools/simgpu/stress_actions.h"

#include <cstring>
#include <thread>
#include <vector>

namespace simgpu_test {
namespace {

constexpr size_t kWords = 8192;
constexpr const char* kImage =
    ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry _Z4fillPjmj()\n{\n  ret;\n}\n";
constexpr size_t kBytes = kWords * sizeof(unsigned);

struct Place {
  Library& library;
  Common& common;
  std::mt19937& random;
  unsigned value() { return static_cast<unsigned>(random()); }
};

std::string check_words(const std::vector<unsigned>& words, unsigned expected, int line) {
  for (unsigned word : words) {
    if (word == expected) continue;
    return "a word is " + std::to_string(word) + " and not " + std::to_string(expected) + ", line " +
           std::to_string(line);
  }
  return "";
}
#define EXPECT_WORDS(words, expected)                                                             \
  do {                                                                                            \
    if (std::string text_ = check_words(words, expected, __LINE__); !text_.empty()) return text_; \
  } while (0)
#define EXPECT_WELL(expression)                                         \
  do {                                                                  \
    if (std::string text_ = (expression); !text_.empty()) return text_; \
  } while (0)

// Fills the words in the stream by the kernel.
std::string launch_fill(Place& at, CUstream stream, CUdeviceptr words, unsigned value) {
  Library& library = at.library;
  CUfunction function = nullptr;
  EXPECT_OK(CU(cuModuleGetFunction)(&function, at.common.module, "_Z4fillPjmj"));
  unsigned long count = kWords;
  void* parameters[] = {&words, &count, &value};
  EXPECT_OK(CU(cuLaunchKernel)(function, 8, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
  return "";
}

// Work in two streams, ordered by an event; and a wait for whatever another thread recorded last.
std::string streams_and_events(Place& at) {
  Library& library = at.library;
  CUstream first = nullptr;
  CUstream second = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  unsigned value = at.value();
  EXPECT_OK(CU(cuStreamCreate)(&first, CU_STREAM_NON_BLOCKING));
  EXPECT_OK(CU(cuStreamCreateWithPriority)(&second, CU_STREAM_NON_BLOCKING, -1));
  EXPECT_OK(CU(cuEventCreate)(&event, CU_EVENT_DEFAULT));
  EXPECT_OK(CU(cuMemAlloc_v2)(&memory, kBytes));
  EXPECT_OK(CU(cuStreamWaitEvent)(first, at.common.events[at.value() % at.common.events.size()], 0));
  EXPECT_WELL(launch_fill(at, first, memory, value));
  EXPECT_OK(CU(cuEventRecord)(event, first));
  EXPECT_OK(CU(cuEventRecord)(at.common.events[at.value() % at.common.events.size()], first));
  EXPECT_OK(CU(cuStreamWaitEvent)(second, event, 0));
  std::vector<unsigned> words(kWords);
  EXPECT_OK(CU(cuMemcpyDtoHAsync_v2)(words.data(), memory, kBytes, second));
  EXPECT_OK(CU(cuStreamSynchronize)(second));
  EXPECT_WORDS(words, value);
  EXPECT_OK(CU(cuEventSynchronize)(event));
  EXPECT_OK(CU(cuEventDestroy_v2)(event));
  EXPECT_OK(CU(cuStreamDestroy_v2)(first));
  EXPECT_OK(CU(cuStreamDestroy_v2)(second));
  EXPECT_OK(CU(cuMemFree_v2)(memory));
  return "";
}

std::string default_streams(Place& at) {
  Library& library = at.library;
  CUdeviceptr memory = 0;
  unsigned value = at.value();
  std::vector<unsigned> words(kWords);
  EXPECT_OK(CU(cuMemAlloc_v2)(&memory, kBytes));
  EXPECT_OK(CU(cuMemsetD32_v2)(memory, value, kWords));
  EXPECT_OK(CU(cuMemcpyDtoH_v2)(words.data(), memory, kBytes));
  EXPECT_WORDS(words, value);
  EXPECT_OK(CU(cuMemsetD32Async_ptsz)(memory, value + 1, kWords, nullptr));
  EXPECT_OK(CU(cuMemcpyDtoHAsync_v2_ptsz)(words.data(), memory, kBytes, nullptr));
  EXPECT_OK(CU(cuStreamSynchronize_ptsz)(nullptr));
  EXPECT_WORDS(words, value + 1);
  EXPECT_OK(CU(cuMemFree_v2)(memory));
  return "";
}

std::string pools(Place& at) {
  Library& library = at.library;
  bool own = at.value() % 2 == 0;
  CUmemoryPool pool = at.common.pool;
  if (own) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    EXPECT_OK(CU(cuMemPoolCreate)(&pool, &properties));
  }
  CUstream stream = nullptr;
  EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  unsigned value = at.value();
  std::vector<unsigned> words(kWords);
  for (int i = 0; i < 3; ++i) {
    CUdeviceptr memory = 0;
    EXPECT_OK(CU(cuMemAllocFromPoolAsync)(&memory, kBytes, pool, stream));
    EXPECT_WELL(launch_fill(at, stream, memory, value));
    EXPECT_OK(CU(cuMemcpyDtoHAsync_v2)(words.data(), memory, kBytes, stream));
    EXPECT_OK(CU(cuMemFreeAsync)(memory, stream));
  }
  EXPECT_OK(CU(cuStreamSynchronize)(stream));
  EXPECT_WORDS(words, value);
  EXPECT_OK(CU(cuMemPoolTrimTo)(pool, 0));
  EXPECT_OK(CU(cuStreamDestroy_v2)(stream));
  if (own) EXPECT_OK(CU(cuMemPoolDestroy)(pool));
  return "";
}

std::string managed(Place& at) {
  Library& library = at.library;
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  unsigned value = at.value();
  EXPECT_OK(CU(cuMemAllocManaged)(&memory, kBytes, CU_MEM_ATTACH_GLOBAL));
  EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  EXPECT_OK(CU(cuMemAdvise)(memory, kBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 0));
  EXPECT_OK(CU(cuMemPrefetchAsync)(memory, kBytes, 0, stream));
  EXPECT_WELL(launch_fill(at, stream, memory, value));
  EXPECT_OK(CU(cuStreamSynchronize)(stream));
  const auto* seen = reinterpret_cast<const unsigned*>(memory);
  EXPECT_WORDS(std::vector<unsigned>(seen, seen + kWords), value);
  EXPECT_OK(CU(cuStreamDestroy_v2)(stream));
  EXPECT_OK(CU(cuMemFree_v2)(memory));
  return "";
}

// A captured graph, launched twice.
std::string captures(Place& at) {
  Library& library = at.library;
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  unsigned value = at.value();
  EXPECT_OK(CU(cuMemAlloc_v2)(&memory, kBytes));
  EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  EXPECT_OK(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  EXPECT_OK(CU(cuMemsetD32Async)(memory, value + 1, kWords, stream));
  EXPECT_WELL(launch_fill(at, stream, memory, value));
  EXPECT_OK(CU(cuStreamEndCapture)(stream, &graph));
  EXPECT_OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
  EXPECT_OK(CU(cuGraphLaunch)(exec, stream));
  EXPECT_OK(CU(cuGraphLaunch)(exec, stream));
  std::vector<unsigned> words(kWords);
  EXPECT_OK(CU(cuMemcpyDtoHAsync_v2)(words.data(), memory, kBytes, stream));
  EXPECT_OK(CU(cuStreamSynchronize)(stream));
  EXPECT_WORDS(words, value);
  EXPECT_OK(CU(cuGraphExecDestroy)(exec));
  EXPECT_OK(CU(cuGraphDestroy)(graph));
  EXPECT_OK(CU(cuStreamDestroy_v2)(stream));
  EXPECT_OK(CU(cuMemFree_v2)(memory));
  return "";
}

// A graph made node by node, cloned; the clone is launched.
std::string explicit_graphs(Place& at) {
  Library& library = at.library;
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraph clone = nullptr;
  CUgraphExec exec = nullptr;
  unsigned value = at.value();
  EXPECT_OK(CU(cuMemAlloc_v2)(&memory, kBytes));
  EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  EXPECT_OK(CU(cuGraphCreate)(&graph, 0));
  CUgraphNode set = nullptr;
  CUgraphNode empty = nullptr;
  CUgraphNode last = nullptr;
  CUDA_MEMSET_NODE_PARAMS parameters{};
  parameters.dst = memory;
  parameters.elementSize = 4;
  parameters.width = kWords;
  parameters.height = 1;
  parameters.value = value + 1;
  EXPECT_OK(CU(cuGraphAddMemsetNode)(&set, graph, nullptr, 0, &parameters, at.common.context));
  EXPECT_OK(CU(cuGraphAddEmptyNode)(&empty, graph, &set, 1));
  parameters.value = value;
  EXPECT_OK(CU(cuGraphAddMemsetNode)(&last, graph, &empty, 1, &parameters, at.common.context));
  EXPECT_OK(CU(cuGraphClone)(&clone, graph));
  EXPECT_OK(CU(cuGraphInstantiateWithFlags)(&exec, clone, 0));
  EXPECT_OK(CU(cuGraphLaunch)(exec, stream));
  std::vector<unsigned> words(kWords);
  EXPECT_OK(CU(cuMemcpyDtoHAsync_v2)(words.data(), memory, kBytes, stream));
  EXPECT_OK(CU(cuStreamSynchronize)(stream));
  EXPECT_WORDS(words, value);
  EXPECT_OK(CU(cuGraphExecDestroy)(exec));
  EXPECT_OK(CU(cuGraphDestroy)(clone));
  EXPECT_OK(CU(cuGraphDestroy)(graph));
  EXPECT_OK(CU(cuStreamDestroy_v2)(stream));
  EXPECT_OK(CU(cuMemFree_v2)(memory));
  return "";
}

// A context of the thread's own, destroyed with memory and a stream still in it.
std::string contexts(Place& at) {
  Library& library = at.library;
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  EXPECT_OK(CU(cuCtxCreate_v2)(&context, 0, 0));
  EXPECT_OK(CU(cuMemAlloc_v2)(&memory, kBytes));
  EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_DEFAULT));
  EXPECT_OK(CU(cuMemsetD32Async)(memory, at.value(), kWords, stream));
  EXPECT_OK(CU(cuCtxSynchronize)());
  EXPECT_OK(CU(cuMemsetD32Async)(memory, at.value(), kWords, stream));
  EXPECT_OK(CU(cuCtxDestroy_v2)(context));
  CUcontext current = nullptr;
  EXPECT_OK(CU(cuCtxGetCurrent)(&current));
  EXPECT(current == at.common.context);
  return "";
}

std::string host_functions(Place& at) {
  Library& library = at.library;
  struct Count {
    std::atomic<int> calls{0};
    static void add(void* data) { static_cast<Count*>(data)->calls.fetch_add(1); }
    static void CUstream_add(CUstream, CUresult, void* data) { add(data); }
  };
  Count count;
  CUstream stream = nullptr;
  EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 4; ++i) EXPECT_OK(CU(cuLaunchHostFunc)(stream, &Count::add, &count));
  EXPECT_OK(CU(cuStreamAddCallback)(stream, &Count::CUstream_add, &count, 0));
  EXPECT_OK(CU(cuStreamSynchronize)(stream));
  EXPECT(count.calls.load() == 5);
  EXPECT_OK(CU(cuStreamDestroy_v2)(stream));
  return "";
}

// Address range and memory apart.
std::string mappings(Place& at) {
  Library& library = at.library;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  size_t step = 0;
  EXPECT_OK(CU(cuMemGetAllocationGranularity)(&step, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_OK(CU(cuMemAddressReserve)(&range, step, 0, 0, 0));
  EXPECT_OK(CU(cuMemCreate)(&handle, step, &properties, 0));
  EXPECT_OK(CU(cuMemMap)(range, step, 0, handle, 0));
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_OK(CU(cuMemSetAccess)(range, step, &access, 1));
  unsigned value = at.value();
  std::vector<unsigned> words(kWords);
  EXPECT_OK(CU(cuMemsetD32_v2)(range, value, kWords));
  EXPECT_OK(CU(cuMemcpyDtoH_v2)(words.data(), range, kBytes));
  EXPECT_WORDS(words, value);
  EXPECT_OK(CU(cuMemUnmap)(range, step));
  EXPECT_OK(CU(cuMemRelease)(handle));
  EXPECT_OK(CU(cuMemAddressFree)(range, step));
  return "";
}

// Errors are as harmless as successes: a refused call changes nothing.
std::string refusals(Place& at) {
  Library& library = at.library;
  CUdeviceptr memory = 0;
  EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAlloc_v2)(&memory, size_t{1} << 40));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, CU(cuMemAlloc_v2)(&memory, 0));
  CUfunction function = nullptr;
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND, CU(cuModuleGetFunction)(&function, at.common.module, "nobody"));
  CUmodule module = nullptr;
  EXPECT_OK(CU(cuModuleLoadData)(&module, kImage));
  EXPECT_OK(CU(cuModuleUnload)(module));
  void* pinned = nullptr;
  EXPECT_OK(CU(cuMemHostAlloc)(&pinned, kBytes, 0));
  EXPECT_OK(CU(cuMemFreeHost)(pinned));
  return "";
}

constexpr std::string (*kActions[])(Place&) = {
    &streams_and_events, &default_streams, &pools,          &managed,  &captures,
    &explicit_graphs,    &contexts,        &host_functions, &mappings, &refusals,
};

}  // namespace

std::string run_actions(Library& library, Common& common, unsigned seed, int rounds) {
  std::mt19937 random(seed);
  Place at{library, common, random};
  EXPECT_OK(CU(cuCtxSetCurrent)(common.context));
  for (int round = 0; round < rounds; ++round) EXPECT_WELL(kActions[random() % std::size(kActions)](at));
  return "";
}

std::string run_threads(Library& library, unsigned seed, int threads, int rounds, bool alone) {
  Common common;
  EXPECT_OK(CU(cuInit)(0));
  EXPECT_OK(CU(cuDevicePrimaryCtxRetain)(&common.context, 0));
  EXPECT_OK(CU(cuCtxSetCurrent)(common.context));
  EXPECT_OK(CU(cuModuleLoadData)(&common.module, kImage));
  EXPECT_OK(CU(cuDeviceGetDefaultMemPool)(&common.pool, 0));
  for (CUevent& event : common.events) EXPECT_OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
  size_t free_before = 0;
  size_t free_after = 0;
  size_t total = 0;
  EXPECT_OK(CU(cuMemGetInfo_v2)(&free_before, &total));

  std::mutex mutex;
  std::string wrong;
  std::vector<std::thread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      std::string text = run_actions(library, common, seed * 1000 + static_cast<unsigned>(thread), rounds);
      std::lock_guard lock(mutex);
      if (wrong.empty()) wrong = text;
    });
  }
  for (std::thread& thread : running) thread.join();
  EXPECT_WELL(wrong);

  for (CUevent event : common.events) EXPECT_OK(CU(cuEventDestroy_v2)(event));
  EXPECT_OK(CU(cuCtxSynchronize)());
  EXPECT_OK(CU(cuMemPoolTrimTo)(common.pool, 0));
  EXPECT_OK(CU(cuMemGetInfo_v2)(&free_after, &total));
  if (alone) EXPECT(free_after == free_before);
  EXPECT_OK(CU(cuDevicePrimaryCtxRelease_v2)(0));
  return "";
}

}  // namespace simgpu_test
