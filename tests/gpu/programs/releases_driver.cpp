// The driver API as a program of this release sees it: the names that its cuda.h makes of cuMemAlloc and its kin, the
// signatures that go with them, and its form of cuGetProcAddress.
#include <cuda.h>
#include <dlfcn.h>

#include <array>
#include <numeric>
#include <vector>

#include "releases.h"

namespace releases {
namespace {

void* driver() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return library;
}

void* find(const char* symbol) {
  void* const function = dlsym(driver(), symbol);
  if (function == nullptr) throw std::runtime_error(std::string("the driver has no ") + symbol);
  return function;
}

#define TEXT_OF(symbol) #symbol
#define SYMBOL(name) TEXT_OF(name)  // after the header's own renaming
#define CU(name) reinterpret_cast<decltype(&name)>(find(SYMBOL(name)))

// simgpu does not have everything: what it lacks gives a line of the report and does not end the program.
bool supported(Report& report, const char* what, CUresult result) {
  if (result == CUDA_ERROR_NOT_SUPPORTED) {
    report.line("%s: not supported here", what);
    return false;
  }
  check(result, what);
  return true;
}

CUcontext own_context(CUdevice device) {
  CUcontext context = nullptr;
#if CUDA_VERSION >= 13000
  CUctxCreateParams parameters{};
  CHECK(CU(cuCtxCreate)(&context, &parameters, CU_CTX_SCHED_AUTO, device));
#else
  CHECK(CU(cuCtxCreate)(&context, CU_CTX_SCHED_AUTO, device));
#endif
  return context;
}

void* asked_for(const char* name) {
  void* function = nullptr;
#if CUDA_VERSION >= 12000
  CUdriverProcAddressQueryResult status{};
  CHECK(CU(cuGetProcAddress)(name, &function, CUDA_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  check(status, name);
#else
  CHECK(CU(cuGetProcAddress)(name, &function, CUDA_VERSION, CU_GET_PROC_ADDRESS_DEFAULT));
#endif
  return function;
}

void look_ups(Report& report) {
#define SAME(name) \
  report.line("cuGetProcAddress(" #name ") is dlsym's: %s", asked_for(#name) == find(SYMBOL(name)) ? "yes" : "no")
  SAME(cuMemAlloc);
  SAME(cuCtxCreate);
  SAME(cuMemAdvise);
  SAME(cuMemPrefetchAsync);
  SAME(cuLaunchKernel);
  SAME(cuStreamGetCaptureInfo);
#undef SAME
}

double summed(CUdeviceptr pointer) {
  std::vector<float> host(kCount);
  CHECK(CU(cuMemcpyDtoH)(host.data(), pointer, kCount * sizeof(float)));
  return std::accumulate(host.begin(), host.end(), 0.0);
}

struct Launch {
  CUfunction function = nullptr;
  int count = kCount;
  float factor = 2;
  CUdeviceptr x = 0;
  CUdeviceptr y = 0;

  std::array<void*, 4> parameters() { return {&count, &factor, &x, &y}; }
  void operator()(CUstream stream) {
    CHECK(CU(cuLaunchKernel)(function, kBlocks, 1, 1, kBlock, 1, 1, 0, stream, parameters().data(), nullptr));
  }
};

void managed(Report& report, CUdevice device, CUstream stream, Launch launch) {
  const std::size_t bytes = kCount * sizeof(float);
  CUdeviceptr pointer = 0;
  CHECK(CU(cuMemAllocManaged)(&pointer, bytes, CU_MEM_ATTACH_GLOBAL));
  CHECK(CU(cuMemsetD32Async)(pointer, 0, kCount, stream));
#if CUDA_VERSION >= 13000
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  CHECK(CU(cuMemAdvise)(pointer, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location));
  CHECK(CU(cuMemPrefetchAsync)(pointer, bytes, location, 0, stream));
#else
  CHECK(CU(cuMemAdvise)(pointer, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device));
  CHECK(CU(cuMemPrefetchAsync)(pointer, bytes, device, stream));
#endif
  launch.y = pointer;
  launch(stream);
  CHECK(CU(cuStreamSynchronize)(stream));
  report.line("managed memory: %.1f", summed(pointer));
  CHECK(CU(cuMemFree)(pointer));
}

void captured(Report& report, CUstream stream, Launch launch) {
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  CHECK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  launch(stream);
  std::size_t dependencies = 1;
#if CUDA_VERSION >= 13000
  CHECK(CU(cuStreamGetCaptureInfo)(stream, &status, &id, nullptr, nullptr, nullptr, &dependencies));
#elif CUDA_VERSION >= 12000
  CHECK(CU(cuStreamGetCaptureInfo)(stream, &status, &id, nullptr, nullptr, &dependencies));
#else
  CHECK(CU(cuStreamGetCaptureInfo)(stream, &status, &id));
#endif
  CHECK(CU(cuStreamEndCapture)(stream, &graph));
  CUDA_KERNEL_NODE_PARAMS parameters{};
  parameters.func = launch.function;
  parameters.gridDimX = kBlocks;
  parameters.blockDimX = kBlock;
  parameters.gridDimY = parameters.gridDimZ = parameters.blockDimY = parameters.blockDimZ = 1;
  auto values = launch.parameters();
  parameters.kernelParams = values.data();
  CUgraphNode first = nullptr, second = nullptr;
  std::size_t nodes = 1;
  CHECK(CU(cuGraphGetNodes)(graph, &first, &nodes));
  if (supported(report, "a kernel node", CU(cuGraphAddKernelNode)(&second, graph, &first, 1, &parameters))) {
    CHECK(CU(cuGraphGetNodes)(graph, nullptr, &nodes));
  }
  CUgraphExec executable = nullptr;
#if CUDA_VERSION >= 12000
  CHECK(CU(cuGraphInstantiate)(&executable, graph, 0));
#else
  CHECK(CU(cuGraphInstantiate)(&executable, graph, nullptr, nullptr, 0));
#endif
  CHECK(CU(cuMemsetD32Async)(launch.y, 0, kCount, stream));
  CHECK(CU(cuGraphLaunch)(executable, stream));
  CHECK(CU(cuStreamSynchronize)(stream));
  report.line("capture status %d, %zu dependencies, %zu nodes: %.1f", status, dependencies, nodes, summed(launch.y));
  CHECK(CU(cuGraphExecDestroy)(executable));
  CHECK(CU(cuGraphDestroy)(graph));
}

void mapped(Report& report, CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  std::size_t bytes = 0;
  if (!supported(report, "mapped memory",
                 CU(cuMemGetAllocationGranularity)(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM)))
    return;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK(CU(cuMemAddressReserve)(&address, bytes, 0, 0, 0));
  CHECK(CU(cuMemCreate)(&handle, bytes, &properties, 0));
  CHECK(CU(cuMemMap)(address, bytes, 0, handle, 0));
  CHECK(CU(cuMemSetAccess)(address, bytes, &access, 1));
  CHECK(CU(cuMemsetD32)(address, 0x3f800000, kCount));
  report.line("mapped %zu bytes: %.1f", bytes, summed(address));
  CHECK(CU(cuMemUnmap)(address, bytes));
  CHECK(CU(cuMemRelease)(handle));
  CHECK(CU(cuMemAddressFree)(address, bytes));
}

}  // namespace

void run_driver(Report& report) {
  CHECK(CU(cuInit)(0));
  int version = 0;
  CUdevice device = 0;
  CHECK(CU(cuDriverGetVersion)(&version));
  CHECK(CU(cuDeviceGet)(&device, 0));
  char name[100];
  CUuuid uuid{};
  CHECK(CU(cuDeviceGetName)(name, sizeof name, device));
  CHECK(CU(cuDeviceGetUuid)(&uuid, device));
  report.line("driver API %d, driver %d, %s, UUID %02x…", CUDA_VERSION, version, name, uuid.bytes[0] & 0xff);
  look_ups(report);
  CUcontext context = own_context(device);
  CUmodule module = nullptr;
  CUstream stream = nullptr;
  CUevent begin = nullptr, end = nullptr;
  const std::size_t bytes = kCount * sizeof(float);
  std::vector<float> host(kCount);
  std::iota(host.begin(), host.end(), 0.0F);
  Launch launch;
  CHECK(CU(cuModuleLoadData)(&module, kSaxpy));
  CHECK(CU(cuModuleGetFunction)(&launch.function, module, kSaxpyName));
  CHECK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(CU(cuEventCreate)(&begin, CU_EVENT_DEFAULT));
  CHECK(CU(cuEventCreate)(&end, CU_EVENT_BLOCKING_SYNC));
  CHECK(CU(cuMemAlloc)(&launch.x, bytes));
  CHECK(CU(cuMemAlloc)(&launch.y, bytes));
  CHECK(CU(cuMemcpyHtoD)(launch.x, host.data(), bytes));
  CHECK(CU(cuCtxSynchronize)());  // the stream does not wait for the default one
  CHECK(CU(cuEventRecord)(begin, stream));
  CHECK(CU(cuMemsetD32Async)(launch.y, 0, kCount, stream));
  launch(stream);
  CHECK(CU(cuEventRecord)(end, stream));
  CHECK(CU(cuEventSynchronize)(end));
  float milliseconds = -1;
  CHECK(CU(cuEventElapsedTime)(&milliseconds, begin, end));
  report.line("vector add: %.1f, time %s", summed(launch.y), milliseconds >= 0 ? "measured" : "wrong");
  captured(report, stream, launch);
  managed(report, device, stream, launch);
  mapped(report, device);
  CHECK(CU(cuMemFree)(launch.x));
  CHECK(CU(cuMemFree)(launch.y));
  CHECK(CU(cuEventDestroy)(begin));
  CHECK(CU(cuEventDestroy)(end));
  CHECK(CU(cuStreamDestroy)(stream));
  CHECK(CU(cuModuleUnload)(module));
  CHECK(CU(cuCtxDestroy)(context));
}

}  // namespace releases
