// Access of one context to another's memory on another GPU.
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

api::CUresult cuCtxEnablePeerAccess(api::CUcontext peerContext, unsigned int Flags) {
  return runtime().memory.enable_peer_access(peerContext,
                                             [&] { return real::cuCtxEnablePeerAccess(peerContext, Flags); });
}

api::CUresult cuCtxDisablePeerAccess(api::CUcontext peerContext) {
  return runtime().memory.disable_peer_access(peerContext, [&] { return real::cuCtxDisablePeerAccess(peerContext); });
}

}  // namespace rota::overrides
