// Stream captures begin and end. Both pass under the closing lock (contexts.h says why).
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUresult;
using api::CUstream;

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

}  // namespace rota::overrides
