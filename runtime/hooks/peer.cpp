// Access of one context to another's memory on another GPU.
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

api::CUresult cuCtxEnablePeerAccess(api::CUcontext peerContext, unsigned int Flags) {
  const api::CUresult result =
      runtime().memory.enable_peer_access(peerContext, [&] { return real::cuCtxEnablePeerAccess(peerContext, Flags); });
  if (result == api::CUDA_SUCCESS) runtime().monitor.settle_reach();
  return result;
}

api::CUresult cuCtxDisablePeerAccess(api::CUcontext peerContext) {
  return runtime().memory.disable_peer_access(peerContext, [&] { return real::cuCtxDisablePeerAccess(peerContext); });
}

}  // namespace rota::overrides
