// Copies in rows, of linear memory or arrays. As for linear ones (transfer.cpp), those that would wait because of rota
// are replaced by their asynchronous forms. Those that the driver refuses because rota serves the memory are made with
// the memory's context current, or name the contexts of both sides: the driver copies memory that is mapped for one GPU
// only, as swap memory is, to another GPU's memory in no other form (measured on two H200s, 580.159.04).
#include <cstddef>
#include <memory>
#include <new>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/driver/context.h"
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

// Where a copy reads or writes: the address of the first byte, as the ledger has it. Memory of the host: 0.
struct Sides {
  CUdeviceptr destination = 0;
  CUdeviceptr source = 0;
};

Sides sides_of(const api::CUDA_MEMCPY3D_PEER& copy) {
  const auto side = [](api::CUmemorytype type, CUdeviceptr first, api::CUarray array) -> CUdeviceptr {
    if (type == api::CU_MEMORYTYPE_ARRAY) return memory::address_of_handle(array);
    return is_linear(type) ? first : 0;
  };
  return {
      side(copy.dstMemoryType,
           copy.dstDevice + (copy.dstZ * copy.dstHeight + copy.dstY) * copy.dstPitch + copy.dstXInBytes, copy.dstArray),
      side(copy.srcMemoryType,
           copy.srcDevice + (copy.srcZ * copy.srcHeight + copy.srcY) * copy.srcPitch + copy.srcXInBytes,
           copy.srcArray)};
}

// Names the contexts of both sides; for the host, that of the other side. Where none is known the fields stay as they
// are.
void name_own_contexts(api::CUDA_MEMCPY3D_PEER& copy, const Sides& sides) {
  const Runtime& parts = runtime();
  const auto context_of = [&](CUdeviceptr side) {
    const int device = side != 0 ? parts.memory.device_of(side) : -1;
    return device >= 0 ? parts.contexts.some(device) : nullptr;
  };
  const api::CUcontext source = context_of(sides.source);
  const api::CUcontext destination = context_of(sides.destination);
  if (source == nullptr && destination == nullptr) return;
  copy.srcContext = source != nullptr ? source : destination;
  copy.dstContext = destination != nullptr ? destination : source;
}

// Makes a copy that the driver has refused with `result`, if it is of swap memory.
template <typename Copy, typename Call, typename Peer>
[[gnu::cold, gnu::noinline]] CUresult with_own_contexts(CUresult result, CUstream stream, const Copy& shape,
                                                        const Call& call, const Peer& peer) {
  const memory::Memory& memory = runtime().memory;
  api::CUDA_MEMCPY3D_PEER named = with_contexts(shape);
  const Sides sides = sides_of(named);
  const auto device_memory = [](CUdeviceptr side) { return (side & memory::kHandleBit) == 0 ? side : 0; };
  const CUdeviceptr to = device_memory(sides.destination);
  const CUdeviceptr from = device_memory(sides.source);
  if (!memory.swaps(to, 1) && !memory.swaps(from, 1)) return result;
  if (const driver::CurrentContext own(own_context(to, from, stream)); own) {
    if (call() == api::CUDA_SUCCESS) return api::CUDA_SUCCESS;
  }
  name_own_contexts(named, sides);
  if (named.srcContext == nullptr || driver::captures(stream, false)) return result;
  return peer(&named) == api::CUDA_SUCCESS ? api::CUDA_SUCCESS : result;
}

template <typename Copy, typename Call, typename Peer>
CUresult with_any_current(CUstream stream, const Copy* shape, Call&& call, Peer&& peer) {
  const CUresult result = call();
  if (result != api::CUDA_ERROR_INVALID_VALUE || shape == nullptr) [[likely]]
    return result;
  return with_own_contexts(result, stream, *shape, call, peer);
}

bool has_rows(api::CUarray array) {
  api::CUDA_ARRAY3D_DESCRIPTOR description{};
  return real::cuArray3DGetDescriptor_v2(&description, array) == api::CUDA_SUCCESS &&
         (description.Height > 1 || description.Depth > 1);
}

// The driver has refused, with `result`, to copy bytes between memory that swaps and an array. Only the driver knows
// which bytes of an array with rows an offset and a count mean: these copies go through the host, in the driver's own
// calls.
template <typename Peer, typename Host>
[[gnu::cold, gnu::noinline]] CUresult of_array(CUresult result, CUstream stream, const api::CUDA_MEMCPY3D_PEER& shape,
                                               Peer&& peer, Host&& by_host) {
  const Runtime& parts = runtime();
  const bool to_array = shape.dstMemoryType == api::CU_MEMORYTYPE_ARRAY;
  if (has_rows(to_array ? shape.dstArray : shape.srcArray)) {
    if (!parts.memory.swaps(to_array ? shape.srcDevice : shape.dstDevice, 1)) return result;
    const std::unique_ptr<std::byte[]> bytes(new (std::nothrow) std::byte[shape.WidthInBytes]);
    return bytes == nullptr ? result : by_host(bytes.get());  // null: the count is larger than any array
  }
  // The copy is in a default stream, so it is not tried again with another context current.
  return with_own_contexts(result, stream, shape, [result] { return result; }, peer);
}

template <typename Peer, typename Read, typename Write>
CUresult bytes_from_array(CUresult result, CUstream stream, const api::CUDA_MEMCPY3D_PEER& shape, Peer&& peer,
                          Read&& read, Write&& write) {
  return of_array(result, stream, shape, peer, [&](void* host) {
    const CUresult taken = read(host, shape.srcArray, shape.srcXInBytes, shape.WidthInBytes);
    return taken == api::CUDA_SUCCESS ? write(shape.dstDevice, host, shape.WidthInBytes) : taken;
  });
}

template <typename Peer, typename Read, typename Write>
CUresult bytes_to_array(CUresult result, CUstream stream, const api::CUDA_MEMCPY3D_PEER& shape, Peer&& peer,
                        Read&& read, Write&& write) {
  return of_array(result, stream, shape, peer, [&](void* host) {
    const CUresult taken = read(host, shape.srcDevice, shape.WidthInBytes);
    return taken == api::CUDA_SUCCESS ? write(shape.dstArray, shape.dstXInBytes, host, shape.WidthInBytes) : taken;
  });
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

CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, api::CUarray srcArray, std::size_t srcOffset, std::size_t ByteCount) {
  const CUresult result = gates::cuMemcpyAtoD_v2(dstDevice, srcArray, srcOffset, ByteCount);
  if (result != api::CUDA_ERROR_INVALID_VALUE) [[likely]]
    return result;
  return bytes_from_array(result, kNull, from_array(dstDevice, srcArray, srcOffset, ByteCount), gates::cuMemcpy3DPeer,
                          gates::cuMemcpyAtoH_v2, cuMemcpyHtoD_v2);
}

CUresult cuMemcpyAtoD_v2_ptds(CUdeviceptr dstDevice, api::CUarray srcArray, std::size_t srcOffset,
                              std::size_t ByteCount) {
  const CUresult result = gates::cuMemcpyAtoD_v2_ptds(dstDevice, srcArray, srcOffset, ByteCount);
  if (result != api::CUDA_ERROR_INVALID_VALUE) [[likely]]
    return result;
  return bytes_from_array(result, kOwnOfThread, from_array(dstDevice, srcArray, srcOffset, ByteCount),
                          gates::cuMemcpy3DPeer_ptds, gates::cuMemcpyAtoH_v2_ptds, cuMemcpyHtoD_v2_ptds);
}

CUresult cuMemcpyDtoA_v2(api::CUarray dstArray, std::size_t dstOffset, CUdeviceptr srcDevice, std::size_t ByteCount) {
  const CUresult result = gates::cuMemcpyDtoA_v2(dstArray, dstOffset, srcDevice, ByteCount);
  if (result != api::CUDA_ERROR_INVALID_VALUE) [[likely]]
    return result;
  return bytes_to_array(result, kNull, to_array(dstArray, dstOffset, srcDevice, ByteCount), gates::cuMemcpy3DPeer,
                        cuMemcpyDtoH_v2, gates::cuMemcpyHtoA_v2);
}

CUresult cuMemcpyDtoA_v2_ptds(api::CUarray dstArray, std::size_t dstOffset, CUdeviceptr srcDevice,
                              std::size_t ByteCount) {
  const CUresult result = gates::cuMemcpyDtoA_v2_ptds(dstArray, dstOffset, srcDevice, ByteCount);
  if (result != api::CUDA_ERROR_INVALID_VALUE) [[likely]]
    return result;
  return bytes_to_array(result, kOwnOfThread, to_array(dstArray, dstOffset, srcDevice, ByteCount),
                        gates::cuMemcpy3DPeer_ptds, cuMemcpyDtoH_v2_ptds, gates::cuMemcpyHtoA_v2_ptds);
}

CUresult cuMemcpyAtoD(api::CUdeviceptr_v1 dstDevice, api::CUarray srcArray, unsigned int srcOffset,
                      unsigned int ByteCount) {
  return gates::cuMemcpyAtoD(dstDevice, srcArray, srcOffset, ByteCount);
}

CUresult cuMemcpyDtoA(api::CUarray dstArray, unsigned int dstOffset, api::CUdeviceptr_v1 srcDevice,
                      unsigned int ByteCount) {
  return gates::cuMemcpyDtoA(dstArray, dstOffset, srcDevice, ByteCount);
}

// The program names the contexts, which need not be the memory's.
CUresult cuMemcpy3DPeer(const api::CUDA_MEMCPY3D_PEER* pCopy) {
  const auto made = [&] {
    return with_any_current(kNull, pCopy, [&] { return gates::cuMemcpy3DPeer(pCopy); }, gates::cuMemcpy3DPeer);
  };
  if (pCopy != nullptr && pCopy->dstContext != pCopy->srcContext) return made();
  return waits_no_longer(kNull, pCopy, made, [&] { return gates::cuMemcpy3DPeerAsync(pCopy, nullptr); });
}

CUresult cuMemcpy3DPeer_ptds(const api::CUDA_MEMCPY3D_PEER* pCopy) {
  const auto made = [&] {
    return with_any_current(
        kOwnOfThread, pCopy, [&] { return gates::cuMemcpy3DPeer_ptds(pCopy); }, gates::cuMemcpy3DPeer_ptds);
  };
  if (pCopy != nullptr && pCopy->dstContext != pCopy->srcContext) return made();
  return waits_no_longer(kOwnOfThread, pCopy, made, [&] { return gates::cuMemcpy3DPeerAsync_ptsz(pCopy, nullptr); });
}

CUresult cuMemcpy3DPeerAsync(const api::CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream) {
  return with_any_current(
      hStream, pCopy, [&] { return gates::cuMemcpy3DPeerAsync(pCopy, hStream); },
      [&](const auto* named) { return gates::cuMemcpy3DPeerAsync(named, hStream); });
}

CUresult cuMemcpy3DPeerAsync_ptsz(const api::CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream) {
  return with_any_current(
      own_of_thread(hStream), pCopy, [&] { return gates::cuMemcpy3DPeerAsync_ptsz(pCopy, hStream); },
      [&](const auto* named) { return gates::cuMemcpy3DPeerAsync_ptsz(named, hStream); });
}

}  // namespace rota::overrides
