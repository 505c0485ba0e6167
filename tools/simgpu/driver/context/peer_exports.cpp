// Peer access between contexts.
#include "tools/simgpu/driver/context/peer.h"
#include "tools/simgpu/driver/entry/mutations.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace rota::sim {

bool accessible(Context& context, const Allocation& allocation) {
  if (allocation.kind != MemoryKind::kDevice || allocation.context == context.handle()) return true;
  if (mutated(Mutation::peers_need_no_access)) return true;
  // Measured on driver 580.159: all contexts of a process on one GPU share an address space, so each may access the
  // others' memory.
  bool same_gpu = allocation.gpu == context.gpu && !mutated(Mutation::contexts_keep_their_memory);
  // Pools and mappings of physical memory have their own access rights.
  if (allocation.pool || allocation.physical) return allocation.accessible(context.gpu, false);
  if (same_gpu) return true;
  std::lock_guard lock(context.mutex);
  return context.peers.count(allocation.context) != 0;
}

}  // namespace rota::sim

ROTA_SIM_EXPORT(cuCtxEnablePeerAccess)(CUcontext peer, unsigned flags) {
  ROTA_SIM_CONTEXT(context);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  ContextPointer other = driver().contexts.find(peer);
  if (!other) return CUDA_ERROR_INVALID_CONTEXT;
  // If the peer is the current context itself, driver 580.159 gives this answer, too (measured). The documentation says
  // CUDA_ERROR_INVALID_CONTEXT.
  if (!peers_possible(context->gpu, other->gpu)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  std::lock_guard lock(context->mutex);
  return context->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

ROTA_SIM_EXPORT(cuCtxDisablePeerAccess)(CUcontext peer) {
  ROTA_SIM_CONTEXT(context);
  if (!driver().contexts.find(peer)) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(context->mutex);
  return context->peers.erase(peer) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
