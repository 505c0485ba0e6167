// The runtime API as a program of this release uses it, above all where releases differ under one name: cudaMemAdvise,
// cudaMemPrefetchAsync, cudaGraphInstantiate, cudaGraphExecUpdate, cudaGraphAddDependencies, cudaStreamGetCaptureInfo,
// cudaGetDriverEntryPoint, cudaGetDeviceProperties. Kernels are PTX, loaded by the driver API into the runtime's
// context.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cudaTypedefs.h>

#include <array>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "releases.h"

namespace releases {
namespace {

constexpr std::size_t kBytes = kCount * sizeof(float);

void* entry_point(const char* name, unsigned int version) {
  void* function = nullptr;
#if CUDART_VERSION >= 13000
  cudaDriverEntryPointQueryResult status{};
  CHECK(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &status));
  check(status, name);
#elif CUDART_VERSION >= 12000
  static_cast<void>(version);
  cudaDriverEntryPointQueryResult status{};
  CHECK(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &status));
  check(status, name);
#else
  static_cast<void>(version);
  CHECK(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault));
#endif
  return function;
}

double summed(const void* pointer) {
  std::vector<float> host(kCount);
  CHECK(cudaMemcpy(host.data(), pointer, kBytes, cudaMemcpyDefault));
  return std::accumulate(host.begin(), host.end(), 0.0);
}

class Saxpy {
 public:
  Saxpy() {
    CHECK(reinterpret_cast<PFN_cuModuleLoadData_v2000>(entry_point("cuModuleLoadData", 2000))(&module_, kSaxpy));
    const auto get = reinterpret_cast<PFN_cuModuleGetFunction_v2000>(entry_point("cuModuleGetFunction", 2000));
    CHECK(get(&function_, module_, kSaxpyName));
    launch_ = reinterpret_cast<PFN_cuLaunchKernel_v4000>(entry_point("cuLaunchKernel", 4000));
  }
  ~Saxpy() { reinterpret_cast<PFN_cuModuleUnload_v2000>(entry_point("cuModuleUnload", 2000))(module_); }
  Saxpy(const Saxpy&) = delete;
  Saxpy& operator=(const Saxpy&) = delete;

  void operator()(const float* x, float* y, cudaStream_t stream) const {
    int count = kCount;
    float factor = 2;
    std::array<void*, 4> parameters = {&count, &factor, &x, &y};
    CHECK(launch_(function_, kBlocks, 1, 1, kBlock, 1, 1, 0, stream, parameters.data(), nullptr));
  }

 private:
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
  PFN_cuLaunchKernel_v4000 launch_ = nullptr;
};

void device(Report& report) {
  int count = 0;
  int version = 0;
  cudaDeviceProp properties{};
  CHECK(cudaGetDeviceCount(&count));
  CHECK(cudaSetDevice(0));
  CHECK(cudaRuntimeGetVersion(&version));
  CHECK(cudaGetDeviceProperties(&properties, 0));
  report.line("runtime API %d of %d, %s, %d.%d, %d multiprocessors of %d threads", version, CUDART_VERSION,
              properties.name, properties.major, properties.minor, properties.multiProcessorCount,
              properties.maxThreadsPerMultiProcessor);
  int least = 0;
  int greatest = 0;
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  report.line("priorities %d to %d, limit %s", least, greatest,
              cudaDeviceSetLimit(cudaLimitStackSize, 2048) == 0 ? "set" : "refused");
}

void copies_and_events(Report& report, const Saxpy& saxpy, float* x, float* y, cudaStream_t stream) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  float* host = nullptr;
  CHECK(cudaMallocHost(reinterpret_cast<void**>(&host), kBytes));
  std::iota(host, host + kCount, 0.0F);
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreateWithFlags(&end, cudaEventBlockingSync));
  CHECK(cudaEventRecord(begin, stream));
  CHECK(cudaMemcpyAsync(x, host, kBytes, cudaMemcpyHostToDevice, stream));
  CHECK(cudaMemsetAsync(y, 0, kBytes, stream));
  saxpy(x, y, stream);
  CHECK(cudaEventRecordWithFlags(end, stream, cudaEventRecordDefault));
  CHECK(cudaStreamWaitEvent(stream, end, 0));
  CHECK(cudaEventSynchronize(end));
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
  CHECK(cudaMemcpyAsync(host, y, kBytes, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  report.line("vector add: %.1f, time %s", std::accumulate(host, host + kCount, 0.0),
              milliseconds >= 0 ? "measured" : "wrong");
  int seen = 0;
  CHECK(cudaLaunchHostFunc(stream, [](void* data) { ++*static_cast<int*>(data); }, &seen));
  CHECK(cudaStreamSynchronize(stream));
  cudaPointerAttributes attributes{};
  CHECK(cudaPointerGetAttributes(&attributes, host));
  report.line("host function ran %d time, host memory is type %d", seen, attributes.type);
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  CHECK(cudaFreeHost(host));
}

void stream_ordered(Report& report, cudaStream_t stream) {
  cudaMemPool_t pool = nullptr;
  unsigned long long threshold = 1 << 20;
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  threshold = 0;
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  void* pooled = nullptr;
  void* also = nullptr;
  CHECK(cudaMallocAsync(&pooled, kBytes, stream));
  CHECK(cudaMallocFromPoolAsync(&also, kBytes, pool, stream));
  CHECK(cudaMemsetAsync(pooled, 0, kBytes, stream));
  CHECK(cudaMemcpyAsync(also, pooled, kBytes, cudaMemcpyDeviceToDevice, stream));
  CHECK(cudaStreamSynchronize(stream));
  report.line("stream-ordered memory: %.1f, threshold %llu", summed(also), threshold);
  CHECK(cudaFreeAsync(pooled, stream));
  CHECK(cudaFreeAsync(also, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaMemPoolTrimTo(pool, 0));
}

void advised(float* pointer, int where, cudaStream_t stream) {
#if CUDART_VERSION >= 13000
  cudaMemLocation location{};
  location.type = where == cudaCpuDeviceId ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  location.id = where == cudaCpuDeviceId ? 0 : where;
  CHECK(cudaMemAdvise(pointer, kBytes, cudaMemAdviseSetPreferredLocation, location));
  CHECK(cudaMemPrefetchAsync(pointer, kBytes, location, 0, stream));
#else
  CHECK(cudaMemAdvise(pointer, kBytes, cudaMemAdviseSetPreferredLocation, where));
  CHECK(cudaMemPrefetchAsync(pointer, kBytes, where, stream));
#endif
}

void managed(Report& report, const Saxpy& saxpy, const float* x, cudaStream_t stream) {
  float* pointer = nullptr;
  CHECK(cudaMallocManaged(reinterpret_cast<void**>(&pointer), kBytes, cudaMemAttachGlobal));
  std::fill(pointer, pointer + kCount, 1.0F);
  advised(pointer, 0, stream);
#if CUDART_VERSION >= 12020 && CUDART_VERSION < 13000
  cudaMemLocation location{};
  location.type = cudaMemLocationTypeDevice;
  CHECK(cudaMemAdvise_v2(pointer, kBytes, cudaMemAdviseSetAccessedBy, location));
  CHECK(cudaMemPrefetchAsync_v2(pointer, kBytes, location, 0, stream));
#endif
  saxpy(x, pointer, stream);
  advised(pointer, cudaCpuDeviceId, stream);
  CHECK(cudaStreamSynchronize(stream));
  report.line("managed memory: %.1f", std::accumulate(pointer, pointer + kCount, 0.0));
  CHECK(cudaFree(pointer));
}

std::size_t dependencies_of_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* nodes = nullptr;
  std::size_t count = 99;
#if CUDART_VERSION >= 13000
  CHECK(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &nodes, nullptr, &count));
#elif CUDART_VERSION >= 12000
  CHECK(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &nodes, &count));
#else
  CHECK(cudaStreamGetCaptureInfo(stream, &status, &id));
  CHECK(cudaStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &nodes, &count));
#endif
  if (status != cudaStreamCaptureStatusActive) throw std::runtime_error("the stream does not capture");
  return count;
}

cudaGraphExec_t instantiated(cudaGraph_t graph) {
  cudaGraphExec_t executable = nullptr;
#if CUDART_VERSION >= 12000
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
#else
  CHECK(cudaGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
#endif
  return executable;
}

void captured(Report& report, const Saxpy& saxpy, float* x, float* y, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK(cudaMemsetAsync(y, 0, kBytes, stream));
  saxpy(x, y, stream);
  const std::size_t dependencies = dependencies_of_capture(stream);
  CHECK(cudaStreamEndCapture(stream, &graph));
  std::size_t nodes = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  cudaGraphExec_t executable = instantiated(graph);
#if CUDART_VERSION >= 12000
  cudaGraphExecUpdateResultInfo answer{};
  CHECK(cudaGraphExecUpdate(executable, graph, &answer));
  const int updated = answer.result;
#else
  cudaGraphNode_t error_node = nullptr;
  cudaGraphExecUpdateResult updated{};
  CHECK(cudaGraphExecUpdate(executable, graph, &error_node, &updated));
#endif
  for (int i = 0; i < 3; ++i) CHECK(cudaGraphLaunch(executable, stream));
  CHECK(cudaStreamSynchronize(stream));
  report.line("captured graph: %zu dependencies, %zu nodes, update %d: %.1f", dependencies, nodes,
              static_cast<int>(updated), summed(y));
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
}

void built(Report& report, float* y, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  std::array<cudaGraphNode_t, 2> nodes{};
  cudaMemsetParams first{};
  first.dst = y;
  first.elementSize = 4;
  first.width = kCount;
  first.height = 1;
  first.value = 0x3f800000;  // 1.0F
  cudaMemsetParams second = first;
  second.width = kCount / 2;
  second.value = 0x40000000;  // 2.0F
  CHECK(cudaGraphCreate(&graph, 0));
  CHECK(cudaGraphAddMemsetNode(&nodes[0], graph, nullptr, 0, &first));
  CHECK(cudaGraphAddMemsetNode(&nodes[1], graph, nullptr, 0, &second));
  std::size_t edges = 0;
#if CUDART_VERSION >= 13000
  CHECK(cudaGraphAddDependencies(graph, &nodes[0], &nodes[1], nullptr, 1));
  CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
#else
  CHECK(cudaGraphAddDependencies(graph, &nodes[0], &nodes[1], 1));
  CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, &edges));
#endif
  cudaGraphExec_t executable = instantiated(graph);
  CHECK(cudaGraphUpload(executable, stream));
  CHECK(cudaGraphLaunch(executable, stream));
  CHECK(cudaStreamSynchronize(stream));
  report.line("graph of two nodes, %zu edge: %.1f", edges, summed(y));
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
}

// Structs by value: extents, pitched pointers, channel descriptions, IPC handles.
void shapes(Report& report, cudaStream_t stream) {
  std::vector<float> rows(64 * 50, 0.5F);
  const std::size_t row = 50 * sizeof(float);
  cudaPitchedPtr volume{};
  CHECK(cudaMalloc3D(&volume, {row, 64, 2}));
  CHECK(cudaMemset3DAsync(volume, 0, {row, 64, 2}, stream));
  CHECK(cudaMemcpy2DAsync(volume.ptr, volume.pitch, rows.data(), row, row, 64, cudaMemcpyHostToDevice, stream));
  CHECK(cudaMemcpy2DAsync(rows.data(), row, volume.ptr, volume.pitch, row, 64, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  const cudaChannelFormatDesc description = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
  cudaArray_t array = nullptr;
  std::vector<float> back(rows.size());
  CHECK(cudaMallocArray(&array, &description, 50, 64, cudaArrayDefault));
  CHECK(cudaMemcpy2DToArray(array, 0, 0, rows.data(), row, row, 64, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy2DFromArray(back.data(), row, array, 0, 0, row, 64, cudaMemcpyDeviceToHost));
  report.line("pitched memory: %.1f, array of %d bits: %.1f", std::accumulate(rows.begin(), rows.end(), 0.0),
              description.x, std::accumulate(back.begin(), back.end(), 0.0));
  cudaEvent_t event = nullptr;
  cudaEvent_t same = nullptr;
  cudaIpcEventHandle_t handle{};
  CHECK(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming));
  CHECK(cudaIpcGetEventHandle(&handle, event));
  report.line("an event's handle in its own process: %s", cudaGetErrorName(cudaIpcOpenEventHandle(&same, handle)));
  cudaGetLastError();
  CHECK(cudaEventDestroy(event));
  CHECK(cudaFreeArray(array));
  CHECK(cudaFree(volume.ptr));
}

void own_library(Report& report, const float* x, float* y, cudaStream_t stream) {
#if CUDART_VERSION >= 13000  // the runtime's own way to a kernel without nvcc
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  CHECK(cudaLibraryLoadData(&library, kSaxpy, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CHECK(cudaLibraryGetKernel(&kernel, library, kSaxpyName));
  int count = kCount;
  float factor = 3;
  std::array<void*, 4> parameters = {&count, &factor, &x, &y};
  CHECK(cudaMemsetAsync(y, 0, kBytes, stream));
  CHECK(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3{kBlocks, 1, 1}, dim3{kBlock, 1, 1},
                         parameters.data(), 0, stream));
  CHECK(cudaStreamSynchronize(stream));
  report.line("cudaLaunchKernel: %.1f", summed(y));
  CHECK(cudaLibraryUnload(library));
#else
  static_cast<void>(report), static_cast<void>(x), static_cast<void>(y), static_cast<void>(stream);
#endif
}

void errors(Report& report, float* y) {
  const cudaError_t direction = cudaMemcpy(y, y, 4, static_cast<cudaMemcpyKind>(77));
  report.line("a copy of no known kind: %s (%s), then %s", cudaGetErrorName(direction), cudaGetErrorString(direction),
              cudaGetErrorName(cudaGetLastError()));
  report.line("an invalid pointer: %s", cudaGetErrorName(cudaFree(y + 1)));
  cudaGetLastError();
  report.line("a device that is not there: %s", cudaGetErrorName(cudaSetDevice(99)));
  cudaGetLastError();
}

}  // namespace

void run_runtime(Report& report) {
  device(report);
  float* x = nullptr;
  float* y = nullptr;
  cudaStream_t stream = nullptr;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&x), kBytes));
  CHECK(cudaMalloc(reinterpret_cast<void**>(&y), kBytes));
  CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
  {
    const Saxpy saxpy;
    copies_and_events(report, saxpy, x, y, stream);
    stream_ordered(report, stream);
    managed(report, saxpy, x, stream);
    captured(report, saxpy, x, y, stream);
    built(report, y, stream);
    std::thread([&] { copies_and_events(report, saxpy, x, y, cudaStreamPerThread); }).join();
  }
  shapes(report, stream);
  own_library(report, x, y, stream);
  errors(report, y);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaFree(x));
  CHECK(cudaFree(y));
  CHECK(cudaStreamDestroy(stream));
  report.line("last error: %s", cudaGetErrorName(cudaPeekAtLastError()));
}

}  // namespace releases
