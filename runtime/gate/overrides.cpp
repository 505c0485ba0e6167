// Overrides: contexts come and go (which GPUs this process touches, what can be drained, whose memory ends), and stream
// captures begin and end (contexts.h says why those take the closing lock).
#include "runtime/overrides.h"
#include "generated/driver_real.h"
#include "runtime/runtime.h"

namespace rota::overrides {

using api::CUcontext;
using api::CUdevice;
using api::CUresult;
using api::CUstream;

namespace {

CUresult made(CUresult result, const CUcontext* context, CUdevice device, bool primary) {
  if (result == api::CUDA_SUCCESS && context != nullptr) runtime().client.context_made(*context, device, primary);
  return result;
}

template <typename Call>
CUresult destroy(CUcontext context, Call&& call) {
  Runtime& parts = runtime();
  bool gone = false;
  const CUresult result =
      parts.contexts.end_context(context, call, [&](CUresult answer) { return gone = answer == api::CUDA_SUCCESS; });
  if (gone) parts.memory.context_ended(context);
  return result;
}

// A primary context ends when its last user lets it go; the driver counts, so the driver is asked. A reset empties it
// even if its users keep it.
enum class End { kRelease, kReset };
template <typename Call>
CUresult end_primary(CUdevice device, End how, Call&& call) {
  Runtime& parts = runtime();
  const CUcontext context = parts.contexts.primary(device);
  bool inactive = false;
  const CUresult result = parts.contexts.end_context(context, call, [&](CUresult answer) {
    unsigned int flags = 0;
    int active = 1;
    return inactive = answer == api::CUDA_SUCCESS &&
                      real::cuDevicePrimaryCtxGetState(device, &flags, &active) == api::CUDA_SUCCESS && active == 0;
  });
  const bool emptied = inactive || (how == End::kReset && result == api::CUDA_SUCCESS);
  if (emptied && context != nullptr) parts.memory.context_ended(context);
  return result;
}

}  // namespace

CUresult cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return made(real::cuCtxCreate(pctx, flags, dev), pctx, dev, false);
}

CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return made(real::cuCtxCreate_v2(pctx, flags, dev), pctx, dev, false);
}

CUresult cuCtxCreate_v3(CUcontext* pctx, api::CUexecAffinityParam* paramsArray, int numParams, unsigned int flags,
                        CUdevice dev) {
  return made(real::cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev), pctx, dev, false);
}

CUresult cuCtxCreate_v4(CUcontext* pctx, api::CUctxCreateParams* ctxCreateParams, unsigned int flags, CUdevice dev) {
  return made(real::cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev), pctx, dev, false);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  return made(real::cuDevicePrimaryCtxRetain(pctx, dev), pctx, dev, true);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
  return destroy(ctx, [&] { return real::cuCtxDestroy_v2(ctx); });
}

CUresult cuCtxDestroy(CUcontext ctx) {
  return destroy(ctx, [&] { return real::cuCtxDestroy(ctx); });
}

// Counted by the driver like a primary context; what counts down to nothing is no longer a context.
CUresult cuCtxDetach(CUcontext ctx) {
  Runtime& parts = runtime();
  bool gone = false;
  const CUresult result = parts.contexts.end_context(
      ctx, [&] { return real::cuCtxDetach(ctx); },
      [&](CUresult answer) {
        unsigned int version = 0;
        gone = answer == api::CUDA_SUCCESS && real::cuCtxGetApiVersion(ctx, &version) != api::CUDA_SUCCESS;
        return gone;
      });
  if (gone) parts.memory.context_ended(ctx);
  return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
  return end_primary(dev, End::kRelease, [&] { return real::cuDevicePrimaryCtxRelease(dev); });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  return end_primary(dev, End::kRelease, [&] { return real::cuDevicePrimaryCtxRelease_v2(dev); });
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
  return end_primary(dev, End::kReset, [&] { return real::cuDevicePrimaryCtxReset(dev); });
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  return end_primary(dev, End::kReset, [&] { return real::cuDevicePrimaryCtxReset_v2(dev); });
}

// --- captures

CUresult cuStreamBeginCapture(CUstream hStream) {
  return runtime().contexts.begin_capture(hStream, false, [&] { return real::cuStreamBeginCapture(hStream); });
}

CUresult cuStreamBeginCapture_ptsz(CUstream hStream) {
  return runtime().contexts.begin_capture(hStream, true, [&] { return real::cuStreamBeginCapture_ptsz(hStream); });
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, api::CUstreamCaptureMode mode) {
  return runtime().contexts.begin_capture(hStream, false, [&] { return real::cuStreamBeginCapture_v2(hStream, mode); });
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream hStream, api::CUstreamCaptureMode mode) {
  return runtime().contexts.begin_capture(hStream, true,
                                          [&] { return real::cuStreamBeginCapture_v2_ptsz(hStream, mode); });
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, api::CUgraph hGraph, const api::CUgraphNode* dependencies,
                                     const api::CUgraphEdgeData* dependencyData, std::size_t numDependencies,
                                     api::CUstreamCaptureMode mode) {
  return runtime().contexts.begin_capture(hStream, false, [&] {
    return real::cuStreamBeginCaptureToGraph(hStream, hGraph, dependencies, dependencyData, numDependencies, mode);
  });
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, api::CUgraph hGraph, const api::CUgraphNode* dependencies,
                                          const api::CUgraphEdgeData* dependencyData, std::size_t numDependencies,
                                          api::CUstreamCaptureMode mode) {
  return runtime().contexts.begin_capture(hStream, true, [&] {
    return real::cuStreamBeginCaptureToGraph_ptsz(hStream, hGraph, dependencies, dependencyData, numDependencies, mode);
  });
}

CUresult cuStreamBeginRecaptureToGraph(CUstream hStream, api::CUstreamCaptureMode mode, api::CUgraph hGraph,
                                       api::CUgraphRecaptureCallback callbackFunc, void* userData) {
  return runtime().contexts.begin_capture(hStream, false, [&] {
    return real::cuStreamBeginRecaptureToGraph(hStream, mode, hGraph, callbackFunc, userData);
  });
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream hStream, api::CUstreamCaptureMode mode, api::CUgraph hGraph,
                                            api::CUgraphRecaptureCallback callbackFunc, void* userData) {
  return runtime().contexts.begin_capture(hStream, true, [&] {
    return real::cuStreamBeginRecaptureToGraph_ptsz(hStream, mode, hGraph, callbackFunc, userData);
  });
}

// What is captured here goes to a graphics API, which runs it when it likes.
constexpr const char* kGraphicsRunsIt = "a graphics API runs what it captures";

CUresult cuStreamBeginCaptureToCig(CUstream hStream, api::CUstreamCigCaptureParams* streamCigCaptureParams) {
  runtime().mark_unevictable(kGraphicsRunsIt);
  return runtime().contexts.begin_capture(
      hStream, false, [&] { return real::cuStreamBeginCaptureToCig(hStream, streamCigCaptureParams); });
}

CUresult cuStreamBeginCaptureToCig_ptsz(CUstream hStream, api::CUstreamCigCaptureParams* streamCigCaptureParams) {
  runtime().mark_unevictable(kGraphicsRunsIt);
  return runtime().contexts.begin_capture(
      hStream, true, [&] { return real::cuStreamBeginCaptureToCig_ptsz(hStream, streamCigCaptureParams); });
}

CUresult cuStreamEndCaptureToCig(CUstream hStream) {
  return runtime().contexts.end_capture(hStream, false, [&] { return real::cuStreamEndCaptureToCig(hStream); });
}

CUresult cuStreamEndCaptureToCig_ptsz(CUstream hStream) {
  return runtime().contexts.end_capture(hStream, true, [&] { return real::cuStreamEndCaptureToCig_ptsz(hStream); });
}

CUresult cuStreamEndCapture(CUstream hStream, api::CUgraph* phGraph) {
  return runtime().contexts.end_capture(hStream, false, [&] { return real::cuStreamEndCapture(hStream, phGraph); });
}

CUresult cuStreamEndCapture_ptsz(CUstream hStream, api::CUgraph* phGraph) {
  return runtime().contexts.end_capture(hStream, true, [&] { return real::cuStreamEndCapture_ptsz(hStream, phGraph); });
}

// --- streams, which have to be known one by one on drivers without cuCtxRecordEvent

CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  const CUresult result = real::cuStreamCreate(phStream, Flags);
  if (result == api::CUDA_SUCCESS) runtime().contexts.stream_made(*phStream, Flags);
  return result;
}

CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
  const CUresult result = real::cuStreamCreateWithPriority(phStream, flags, priority);
  if (result == api::CUDA_SUCCESS) runtime().contexts.stream_made(*phStream, flags);
  return result;
}

CUresult cuStreamDestroy_v2(CUstream hStream) {
  return runtime().contexts.destroy_stream(hStream, [&] { return real::cuStreamDestroy_v2(hStream); });
}

CUresult cuStreamDestroy(CUstream hStream) {
  return runtime().contexts.destroy_stream(hStream, [&] { return real::cuStreamDestroy(hStream); });
}

}  // namespace rota::overrides
