// Launches, streams, events, capture and graphs of the runtime API.
#include "tools/simgpu/cudart/runtime.h"

using namespace rota::sim::cudart;  // NOLINT

namespace {

int launch(CUkernel kernel, Dim3 grid, Dim3 block, void** arguments, size_t shared, CUstream stream, bool per_thread) {
  unsigned long threads = 1UL * block.x * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0) return done(kInvalidConfiguration);
  // A CUkernel stands for a CUfunction in launches.
  auto function = reinterpret_cast<CUfunction>(kernel);
  void* none[1] = {nullptr};
  return call(per_thread ? &Driver::cuLaunchKernel_ptsz : &Driver::cuLaunchKernel, function, grid.x, grid.y, grid.z,
              block.x, block.y, block.z, static_cast<unsigned>(shared), stream, arguments != nullptr ? arguments : none,
              static_cast<void**>(nullptr));
}

int launch_host_stub(const void* stub, Dim3 grid, Dim3 block, void** arguments, size_t shared, CUstream stream,
                     bool per_thread) {
  CUkernel kernel = nullptr;
  if (int error = kernel_of(stub, &kernel); error != kSuccess) return done(error);
  return launch(kernel, grid, block, arguments, shared, stream, per_thread);
}

struct LaunchConfig {  // cudaLaunchConfig_t
  Dim3 grid, block;
  size_t shared;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned count;
};

int launch_configured(const LaunchConfig* config, const void* stub, void** arguments, bool per_thread) {
  if (config == nullptr) return done(kInvalidValue);
  CUkernel kernel = nullptr;
  if (int error = kernel_of(stub, &kernel); error != kSuccess) return done(error);
  CUlaunchConfig driver_config{};
  driver_config.gridDimX = config->grid.x;
  driver_config.gridDimY = config->grid.y;
  driver_config.gridDimZ = config->grid.z;
  driver_config.blockDimX = config->block.x;
  driver_config.blockDimY = config->block.y;
  driver_config.blockDimZ = config->block.z;
  driver_config.sharedMemBytes = static_cast<unsigned>(config->shared);
  driver_config.hStream = config->stream;
  driver_config.attrs = config->attributes;
  driver_config.numAttrs = config->count;
  const CUlaunchConfig* pointer = &driver_config;
  return call(per_thread ? &Driver::cuLaunchKernelEx_ptsz : &Driver::cuLaunchKernelEx, pointer,
              reinterpret_cast<CUfunction>(kernel), arguments, static_cast<void**>(nullptr));
}

}  // namespace

ROTA_CUDART_EXPORT int __cudaLaunchKernel(CUkernel kernel, Dim3 grid, Dim3 block, void** arguments, size_t shared,
                                          CUstream stream) {
  return launch(kernel, grid, block, arguments, shared, stream, false);
}
ROTA_CUDART_EXPORT int __cudaLaunchKernel_ptsz(CUkernel kernel, Dim3 grid, Dim3 block, void** arguments, size_t shared,
                                               CUstream stream) {
  return launch(kernel, grid, block, arguments, shared, stream, true);
}
ROTA_CUDART_EXPORT int cudaLaunchKernel(const void* stub, Dim3 grid, Dim3 block, void** arguments, size_t shared,
                                        CUstream stream) {
  return launch_host_stub(stub, grid, block, arguments, shared, stream, false);
}
ROTA_CUDART_EXPORT int cudaLaunchKernel_ptsz(const void* stub, Dim3 grid, Dim3 block, void** arguments, size_t shared,
                                             CUstream stream) {
  return launch_host_stub(stub, grid, block, arguments, shared, stream, true);
}
ROTA_CUDART_EXPORT int cudaLaunchKernelExC(const LaunchConfig* config, const void* stub, void** arguments) {
  return launch_configured(config, stub, arguments, false);
}
ROTA_CUDART_EXPORT int cudaLaunchKernelExC_ptsz(const LaunchConfig* config, const void* stub, void** arguments) {
  return launch_configured(config, stub, arguments, true);
}
ROTA_CUDART_EXPORT int cudaLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return call(&Driver::cuLaunchHostFunc, stream, function, data);
}
ROTA_CUDART_EXPORT int cudaLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void* data) {
  return call(&Driver::cuLaunchHostFunc_ptsz, stream, function, data);
}

ROTA_CUDART_EXPORT int cudaStreamCreate(CUstream* stream) {
  return call(&Driver::cuStreamCreate, stream, 0U);
}
ROTA_CUDART_EXPORT int cudaStreamCreateWithFlags(CUstream* stream, unsigned flags) {
  return call(&Driver::cuStreamCreate, stream, flags);
}
ROTA_CUDART_EXPORT int cudaStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return call(&Driver::cuStreamCreateWithPriority, stream, flags, priority);
}
ROTA_CUDART_EXPORT int cudaStreamDestroy(CUstream stream) {
  return call(&Driver::cuStreamDestroy_v2, stream);
}
ROTA_CUDART_EXPORT int cudaStreamSynchronize(CUstream stream) {
  return call(&Driver::cuStreamSynchronize, stream);
}
ROTA_CUDART_EXPORT int cudaStreamSynchronize_ptsz(CUstream stream) {
  return call(&Driver::cuStreamSynchronize_ptsz, stream);
}
ROTA_CUDART_EXPORT int cudaStreamQuery(CUstream stream) {
  return call(&Driver::cuStreamQuery, stream);
}
ROTA_CUDART_EXPORT int cudaStreamQuery_ptsz(CUstream stream) {
  return call(&Driver::cuStreamQuery_ptsz, stream);
}
ROTA_CUDART_EXPORT int cudaStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return call(&Driver::cuStreamWaitEvent, stream, event, flags);
}
ROTA_CUDART_EXPORT int cudaStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) {
  return call(&Driver::cuStreamWaitEvent_ptsz, stream, event, flags);
}

ROTA_CUDART_EXPORT int cudaEventCreate(CUevent* event) {
  return call(&Driver::cuEventCreate, event, 0U);
}
ROTA_CUDART_EXPORT int cudaEventCreateWithFlags(CUevent* event, unsigned flags) {
  return call(&Driver::cuEventCreate, event, flags);
}
ROTA_CUDART_EXPORT int cudaEventRecord(CUevent event, CUstream stream) {
  return call(&Driver::cuEventRecord, event, stream);
}
ROTA_CUDART_EXPORT int cudaEventRecord_ptsz(CUevent event, CUstream stream) {
  return call(&Driver::cuEventRecord_ptsz, event, stream);
}
ROTA_CUDART_EXPORT int cudaEventQuery(CUevent event) {
  return call(&Driver::cuEventQuery, event);
}
ROTA_CUDART_EXPORT int cudaEventSynchronize(CUevent event) {
  return call(&Driver::cuEventSynchronize, event);
}
ROTA_CUDART_EXPORT int cudaEventDestroy(CUevent event) {
  return call(&Driver::cuEventDestroy_v2, event);
}
ROTA_CUDART_EXPORT int cudaEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return call(&Driver::cuEventElapsedTime_v2, milliseconds, start, end);
}

ROTA_CUDART_EXPORT int cudaStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  return call(&Driver::cuStreamBeginCapture_v2, stream, mode);
}
ROTA_CUDART_EXPORT int cudaStreamEndCapture(CUstream stream, CUgraph* graph) {
  return call(&Driver::cuStreamEndCapture, stream, graph);
}
ROTA_CUDART_EXPORT int cudaStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return call(&Driver::cuStreamIsCapturing, stream, status);
}
ROTA_CUDART_EXPORT int cudaThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return call(&Driver::cuThreadExchangeStreamCaptureMode, mode);
}
ROTA_CUDART_EXPORT int cudaGraphInstantiate(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  return call(&Driver::cuGraphInstantiateWithFlags, executable, graph, flags);
}
ROTA_CUDART_EXPORT int cudaGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  return call(&Driver::cuGraphInstantiateWithFlags, executable, graph, flags);
}
ROTA_CUDART_EXPORT int cudaGraphLaunch(CUgraphExec executable, CUstream stream) {
  return call(&Driver::cuGraphLaunch, executable, stream);
}
ROTA_CUDART_EXPORT int cudaGraphLaunch_ptsz(CUgraphExec executable, CUstream stream) {
  return call(&Driver::cuGraphLaunch_ptsz, executable, stream);
}
ROTA_CUDART_EXPORT int cudaGraphExecDestroy(CUgraphExec executable) {
  return call(&Driver::cuGraphExecDestroy, executable);
}
ROTA_CUDART_EXPORT int cudaGraphDestroy(CUgraph graph) {
  return call(&Driver::cuGraphDestroy, graph);
}
