// Copies in rows, of linear memory or arrays. As for linear ones (transfer.cpp), those that would wait because of rota
// are replaced by their asynchronous forms. Those that the driver refuses because rota serves the memory name the
// contexts: what is mapped for one GPU only, as swapped memory is, it copies to another GPU's memory in no other form,
// and to and from the host with another GPU's context current in no other either (measured on two H200s, 580.159.04).
#include <optional>

#include "generated/driver_gates.h"
#include "runtime/core/runtime.h"
#include "runtime/driver/stream.h"
#include "runtime/hooks/overrides.h"
#include "runtime/hooks/shape.h"
#include "runtime/hooks/transfer.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;
using api::CUstream;

namespace {

bool is_linear(api::CUmemorytype type) {
  return type == api::CU_MEMORYTYPE_DEVICE || type == api::CU_MEMORYTYPE_UNIFIED;
}

// The copy with the contexts of its memory; none, if no swapped memory is copied, or if an array is.
std::optional<api::CUDA_MEMCPY3D_PEER> in_own_contexts(api::CUDA_MEMCPY3D_PEER copy) {
  const Runtime& parts = runtime();
  bool swaps = false;
  const auto context_of = [&](api::CUmemorytype type, CUdeviceptr first) -> api::CUcontext {
    if (!is_linear(type)) return nullptr;
    swaps = swaps || parts.memory.swaps(first, 1);
    const int device = parts.memory.device_of(first);
    return device >= 0 ? parts.contexts.some(device) : nullptr;
  };
  if (copy.srcMemoryType == api::CU_MEMORYTYPE_ARRAY || copy.dstMemoryType == api::CU_MEMORYTYPE_ARRAY) {
    return std::nullopt;
  }
  const CUdeviceptr source =
      copy.srcDevice + (copy.srcZ * copy.srcHeight + copy.srcY) * copy.srcPitch + copy.srcXInBytes;
  const CUdeviceptr destination =
      copy.dstDevice + (copy.dstZ * copy.dstHeight + copy.dstY) * copy.dstPitch + copy.dstXInBytes;
  copy.srcContext = context_of(copy.srcMemoryType, source);
  copy.dstContext = context_of(copy.dstMemoryType, destination);
  // For memory of the host, the other's.
  if (copy.srcContext == nullptr) copy.srcContext = copy.dstContext;
  if (copy.dstContext == nullptr) copy.dstContext = copy.srcContext;
  return swaps && copy.srcContext != nullptr ? std::optional(copy) : std::nullopt;
}

// Not what a stream captures.
template <typename Copy, typename Call, typename Peer>
CUresult with_any_current(CUstream stream, const Copy* shape, Call&& call, Peer&& peer) {
  const CUresult result = call();
  if (result != api::CUDA_ERROR_INVALID_VALUE || shape == nullptr || driver::captures(stream, false)) return result;
  const auto named = in_own_contexts(with_contexts(*shape));
  return named && peer(&*named) == api::CUDA_SUCCESS ? api::CUDA_SUCCESS : result;
}

template <typename Copy, typename Call, typename Async>
CUresult waits_no_longer(CUstream stream, const Copy* shape, Call&& call, Async&& async) {
  if (shape == nullptr || !is_linear(shape->dstMemoryType) || !is_linear(shape->srcMemoryType)) return call();
  return copy(stream, shape->dstDevice, shape->srcDevice, call, async);
}

template <typename Copy, typename Call, typename Async>
CUresult copy_rows(const Copy* shape, Call&& call, Async&& async) {
  return waits_no_longer(
      kNull, shape, [&] { return with_any_current(kNull, shape, call, gates::cuMemcpy3DPeer); }, async);
}

template <typename Copy, typename Call, typename Async>
CUresult copy_rows_ptds(const Copy* shape, Call&& call, Async&& async) {
  return waits_no_longer(
      kOwnOfThread, shape, [&] { return with_any_current(kOwnOfThread, shape, call, gates::cuMemcpy3DPeer_ptds); },
      async);
}

}  // namespace

// The forms of CUDA 3.1 and before carry 32-bit addresses, which neither managed nor swapped memory has.
CUresult cuMemcpy2D(const api::CUDA_MEMCPY2D_v1* pCopy) {
  return gates::cuMemcpy2D(pCopy);
}

CUresult cuMemcpy2DUnaligned(const api::CUDA_MEMCPY2D_v1* pCopy) {
  return gates::cuMemcpy2DUnaligned(pCopy);
}

CUresult cuMemcpy2DAsync(const api::CUDA_MEMCPY2D_v1* pCopy, CUstream hStream) {
  return gates::cuMemcpy2DAsync(pCopy, hStream);
}

CUresult cuMemcpy3D(const api::CUDA_MEMCPY3D_v1* pCopy) {
  return gates::cuMemcpy3D(pCopy);
}

CUresult cuMemcpy3DAsync(const api::CUDA_MEMCPY3D_v1* pCopy, CUstream hStream) {
  return gates::cuMemcpy3DAsync(pCopy, hStream);
}

CUresult cuMemcpy2D_v2(const api::CUDA_MEMCPY2D* pCopy) {
  return copy_rows(
      pCopy, [&] { return gates::cuMemcpy2D_v2(pCopy); }, [&] { return gates::cuMemcpy2DAsync_v2(pCopy, nullptr); });
}

CUresult cuMemcpy2D_v2_ptds(const api::CUDA_MEMCPY2D* pCopy) {
  return copy_rows_ptds(
      pCopy, [&] { return gates::cuMemcpy2D_v2_ptds(pCopy); },
      [&] { return gates::cuMemcpy2DAsync_v2_ptsz(pCopy, nullptr); });
}

// The asynchronous form refuses pitches that this one accepts; then this one goes to the driver.
CUresult cuMemcpy2DUnaligned_v2(const api::CUDA_MEMCPY2D* pCopy) {
  return copy_rows(
      pCopy, [&] { return gates::cuMemcpy2DUnaligned_v2(pCopy); },
      [&] { return gates::cuMemcpy2DAsync_v2(pCopy, nullptr); });
}

CUresult cuMemcpy2DUnaligned_v2_ptds(const api::CUDA_MEMCPY2D* pCopy) {
  return copy_rows_ptds(
      pCopy, [&] { return gates::cuMemcpy2DUnaligned_v2_ptds(pCopy); },
      [&] { return gates::cuMemcpy2DAsync_v2_ptsz(pCopy, nullptr); });
}

CUresult cuMemcpy2DAsync_v2(const api::CUDA_MEMCPY2D* pCopy, CUstream hStream) {
  return with_any_current(
      hStream, pCopy, [&] { return gates::cuMemcpy2DAsync_v2(pCopy, hStream); },
      [&](const auto* named) { return gates::cuMemcpy3DPeerAsync(named, hStream); });
}

CUresult cuMemcpy2DAsync_v2_ptsz(const api::CUDA_MEMCPY2D* pCopy, CUstream hStream) {
  return with_any_current(
      own_of_thread(hStream), pCopy, [&] { return gates::cuMemcpy2DAsync_v2_ptsz(pCopy, hStream); },
      [&](const auto* named) { return gates::cuMemcpy3DPeerAsync_ptsz(named, hStream); });
}

CUresult cuMemcpy3D_v2(const api::CUDA_MEMCPY3D* pCopy) {
  return copy_rows(
      pCopy, [&] { return gates::cuMemcpy3D_v2(pCopy); }, [&] { return gates::cuMemcpy3DAsync_v2(pCopy, nullptr); });
}

CUresult cuMemcpy3D_v2_ptds(const api::CUDA_MEMCPY3D* pCopy) {
  return copy_rows_ptds(
      pCopy, [&] { return gates::cuMemcpy3D_v2_ptds(pCopy); },
      [&] { return gates::cuMemcpy3DAsync_v2_ptsz(pCopy, nullptr); });
}

CUresult cuMemcpy3DAsync_v2(const api::CUDA_MEMCPY3D* pCopy, CUstream hStream) {
  return with_any_current(
      hStream, pCopy, [&] { return gates::cuMemcpy3DAsync_v2(pCopy, hStream); },
      [&](const auto* named) { return gates::cuMemcpy3DPeerAsync(named, hStream); });
}

CUresult cuMemcpy3DAsync_v2_ptsz(const api::CUDA_MEMCPY3D* pCopy, CUstream hStream) {
  return with_any_current(
      own_of_thread(hStream), pCopy, [&] { return gates::cuMemcpy3DAsync_v2_ptsz(pCopy, hStream); },
      [&](const auto* named) { return gates::cuMemcpy3DPeerAsync_ptsz(named, hStream); });
}

CUresult cuMemcpy3DPeer(const api::CUDA_MEMCPY3D_PEER* pCopy) {
  if (pCopy != nullptr && pCopy->dstContext != pCopy->srcContext) return gates::cuMemcpy3DPeer(pCopy);
  return waits_no_longer(
      kNull, pCopy, [&] { return gates::cuMemcpy3DPeer(pCopy); },
      [&] { return gates::cuMemcpy3DPeerAsync(pCopy, nullptr); });
}

CUresult cuMemcpy3DPeer_ptds(const api::CUDA_MEMCPY3D_PEER* pCopy) {
  if (pCopy != nullptr && pCopy->dstContext != pCopy->srcContext) return gates::cuMemcpy3DPeer_ptds(pCopy);
  return waits_no_longer(
      kOwnOfThread, pCopy, [&] { return gates::cuMemcpy3DPeer_ptds(pCopy); },
      [&] { return gates::cuMemcpy3DPeerAsync_ptsz(pCopy, nullptr); });
}

}  // namespace rota::overrides
