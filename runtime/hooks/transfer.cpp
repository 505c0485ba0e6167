// Synchronous sets and linear copies within the GPU's memory. Behind work in the null stream, those that touch plain
// memory return at once and those that touch managed memory wait; the asynchronous forms in the same stream return at
// once for both (measured on an H200 for sets, linear and 2D copies). So a call that would wait only because rota
// serves plain memory as managed memory is replaced by its asynchronous form in the null stream: it is done in the same
// order and, as far as the program can tell, at the same time.
//
// All other calls go to the driver, through their gates; so do all calls during a capture, since the driver may have to
// refuse them. Linear copies between two GPUs that it refuses because rota serves the memory are made in another way
// (across()).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/core/runtime.h"
#include "runtime/driver/context.h"
#include "runtime/driver/gpu_number.h"
#include "runtime/driver/stream.h"
#include "runtime/hooks/overrides.h"
#include "runtime/hooks/transfer.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;

namespace {

template <typename Call, typename Async>
CUresult set(api::CUstream stream, CUdeviceptr destination, Call&& call, Async&& async) {
  const memory::Memory& memory = runtime().memory;
  return waited(without_waiting(memory.only_converted_makes_it_wait(destination), call, async),
                memory.has_to_wait(destination), stream);
}

// Through the host's memory, once the work of the stream has finished.
CUresult copy_by_host(CUdeviceptr destination, api::CUcontext to, CUdeviceptr source, api::CUcontext from,
                      std::size_t bytes, api::CUstream stream) {
  constexpr std::size_t kPiece = std::size_t{4} << 20;
  CUresult result = real::cuStreamSynchronize(stream);
  std::vector<char> piece(std::min(bytes, kPiece));
  for (std::size_t done = 0; done < bytes && result == api::CUDA_SUCCESS; done += piece.size()) {
    const std::size_t count = std::min(bytes - done, piece.size());
    const auto within = [&](api::CUcontext context, auto copy) {
      const driver::CurrentContext current(context);
      if (result == api::CUDA_SUCCESS) result = current ? copy() : api::CUDA_ERROR_INVALID_CONTEXT;
    };
    within(from, [&] { return gates::cuMemcpyDtoH_v2(piece.data(), source + done, count); });
    within(to, [&] { return gates::cuMemcpyHtoD_v2(destination + done, piece.data(), count); });
  }
  return result;
}

// Makes a refused copy through the host, if that is necessary, and returns its result.
CUresult by_host_instead(CUresult result, CUdeviceptr destination, api::CUcontext to, CUdeviceptr source,
                         api::CUcontext from, std::size_t bytes, api::CUstream stream) {
  const memory::Memory& memory = runtime().memory;
  static log::Once once;
  if (once.first()) {
    log::info(
        "copies from GPU {} to GPU {} wait and go through the host's memory: the driver refuses them for memory that "
        "swaps",
        driver::gpu_number(memory.device_of(source)), driver::gpu_number(memory.device_of(destination)));
  }
  const CUresult made = copy_by_host(destination, to, source, from, bytes, stream);
  return made == api::CUDA_SUCCESS ? made : result;
}

CUresult capture_refused(CUresult result, int to, int from) {
  static log::Once once;
  if (to >= 0 && from >= 0 && to != from && once.first()) {
    log::warn(
        "a copy from GPU {} to GPU {} was refused during a capture: graphs do not copy memory that swaps between GPUs "
        "without peer access; enable it before (cuCtxEnablePeerAccess), or run this program with --memory native",
        driver::gpu_number(from), driver::gpu_number(to));
  }
  return result;
}

// Whether the forms for addresses of GPU memory also accept it: host memory that the driver knows, and managed memory.
bool is_known(CUdeviceptr address) {
  unsigned int type = 0;
  return real::cuPointerGetAttribute(&type, api::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == api::CUDA_SUCCESS;
}

// Between memory of two GPUs, and within that of one while another's context is current, the driver copies whatever it
// has allocated. Memory that is mapped for one GPU only, as swap memory is, it copies only with the memory's context
// current (own_context()) or, where a stream does not capture, in the forms that name the contexts of both sides
// (measured on an H200, 580.159.04). Where it refuses that, too, the copy goes through the host.
template <typename Peer>
[[gnu::cold, gnu::noinline]] CUresult across_refused(CUresult result, CUdeviceptr destination, CUdeviceptr source,
                                                     std::size_t bytes, api::CUstream stream, Peer peer, bool unified) {
  const Runtime& parts = runtime();
  if (!parts.memory.swaps(destination, 1) && !parts.memory.swaps(source, 1)) return result;
  const int to = parts.memory.device_of(destination);
  const int from = parts.memory.device_of(source);
  const bool of_host = to < 0 || from < 0;
  const bool known = !of_host || is_known(to < 0 ? destination : source);
  if (!known && !unified) return result;
  if (const driver::CurrentContext own(own_context(destination, source, stream)); own) {
    if (gates::cuMemcpyAsync(destination, source, bytes, stream) == api::CUDA_SUCCESS) return api::CUDA_SUCCESS;
  }
  if (driver::captures(stream, false)) return capture_refused(result, to, from);
  // Memory that belongs to no GPU is copied with the other side's context.
  const api::CUcontext of_destination = parts.contexts.some(to >= 0 ? to : from);
  const api::CUcontext of_source = parts.contexts.some(from >= 0 ? from : to);
  if (of_destination == nullptr || of_source == nullptr) return result;
  if (known && peer(destination, of_destination, source, of_source, bytes, stream) == api::CUDA_SUCCESS)
    return api::CUDA_SUCCESS;
  if (of_host) return host_refused(result, destination, source, bytes, stream);
  return by_host_instead(result, destination, of_destination, source, of_source, bytes, stream);
}

// `unified`: one end may be any memory of the host.
// `peer` is told its arguments: references to them would make every call store them to memory, for nothing.
template <typename Call, typename Peer>
CUresult across(CUdeviceptr destination, CUdeviceptr source, std::size_t bytes, api::CUstream stream, Call&& call,
                Peer peer, bool unified = false) {
  const CUresult result = call();
  if (result != api::CUDA_ERROR_INVALID_VALUE) [[likely]]
    return result;
  return across_refused(result, destination, source, bytes, stream, peer, unified);
}

constexpr auto kPeer = [](auto destination, auto to, auto source, auto from, std::size_t bytes, api::CUstream) {
  return gates::cuMemcpyPeer(destination, to, source, from, bytes);
};
constexpr auto kPeerOfThread = [](auto destination, auto to, auto source, auto from, std::size_t bytes, api::CUstream) {
  return gates::cuMemcpyPeer_ptds(destination, to, source, from, bytes);
};
constexpr auto kPeerAsync = [](auto... arguments) { return gates::cuMemcpyPeerAsync(arguments...); };
constexpr auto kPeerAsyncOfThread = [](auto... arguments) { return gates::cuMemcpyPeerAsync_ptsz(arguments...); };

// The program names the contexts, which need not be the memory's. Between two the synchronous form also waits for work
// of both; the asynchronous one does not.
template <typename Call, typename Async, typename Peer>
CUresult copy_peer(api::CUstream stream, api::CUcontext to, CUdeviceptr destination, api::CUcontext from,
                   CUdeviceptr source, std::size_t bytes, Call&& call, Async&& async, Peer peer) {
  const auto made = [&] { return across(destination, source, bytes, stream, call, peer); };
  return to == from ? copy(stream, destination, source, made, async) : made();
}

}  // namespace

// The forms of CUDA 3.1 and before carry 32-bit addresses, which managed memory does not have.
CUresult cuMemsetD8(api::CUdeviceptr_v1 to, unsigned char value, unsigned int count) {
  return gates::cuMemsetD8(to, value, count);
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, std::size_t count) {
  return set(
      kNull, to, [&] { return gates::cuMemsetD8_v2(to, value, count); },
      [&] { return gates::cuMemsetD8Async(to, value, count, nullptr); });
}

CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, std::size_t count) {
  return set(
      kOwnOfThread, to, [&] { return gates::cuMemsetD8_v2_ptds(to, value, count); },
      [&] { return gates::cuMemsetD8Async_ptsz(to, value, count, nullptr); });
}

CUresult cuMemsetD2D8(api::CUdeviceptr_v1 to, unsigned int pitch, unsigned char value, unsigned int width,
                      unsigned int height) {
  return gates::cuMemsetD2D8(to, pitch, value, width, height);
}

CUresult cuMemsetD2D8_v2(CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t width,
                         std::size_t height) {
  return set(
      kNull, to, [&] { return gates::cuMemsetD2D8_v2(to, pitch, value, width, height); },
      [&] { return gates::cuMemsetD2D8Async(to, pitch, value, width, height, nullptr); });
}

CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t width,
                              std::size_t height) {
  return set(
      kOwnOfThread, to, [&] { return gates::cuMemsetD2D8_v2_ptds(to, pitch, value, width, height); },
      [&] { return gates::cuMemsetD2D8Async_ptsz(to, pitch, value, width, height, nullptr); });
}

CUresult cuMemsetD16(api::CUdeviceptr_v1 to, unsigned short value, unsigned int count) {
  return gates::cuMemsetD16(to, value, count);
}

CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, std::size_t count) {
  return set(
      kNull, to, [&] { return gates::cuMemsetD16_v2(to, value, count); },
      [&] { return gates::cuMemsetD16Async(to, value, count, nullptr); });
}

CUresult cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, std::size_t count) {
  return set(
      kOwnOfThread, to, [&] { return gates::cuMemsetD16_v2_ptds(to, value, count); },
      [&] { return gates::cuMemsetD16Async_ptsz(to, value, count, nullptr); });
}

CUresult cuMemsetD2D16(api::CUdeviceptr_v1 to, unsigned int pitch, unsigned short value, unsigned int width,
                       unsigned int height) {
  return gates::cuMemsetD2D16(to, pitch, value, width, height);
}

CUresult cuMemsetD2D16_v2(CUdeviceptr to, std::size_t pitch, unsigned short value, std::size_t width,
                          std::size_t height) {
  return set(
      kNull, to, [&] { return gates::cuMemsetD2D16_v2(to, pitch, value, width, height); },
      [&] { return gates::cuMemsetD2D16Async(to, pitch, value, width, height, nullptr); });
}

CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr to, std::size_t pitch, unsigned short value, std::size_t width,
                               std::size_t height) {
  return set(
      kOwnOfThread, to, [&] { return gates::cuMemsetD2D16_v2_ptds(to, pitch, value, width, height); },
      [&] { return gates::cuMemsetD2D16Async_ptsz(to, pitch, value, width, height, nullptr); });
}

CUresult cuMemsetD32(api::CUdeviceptr_v1 to, unsigned int value, unsigned int count) {
  return gates::cuMemsetD32(to, value, count);
}

CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, std::size_t count) {
  return set(
      kNull, to, [&] { return gates::cuMemsetD32_v2(to, value, count); },
      [&] { return gates::cuMemsetD32Async(to, value, count, nullptr); });
}

CUresult cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned int value, std::size_t count) {
  return set(
      kOwnOfThread, to, [&] { return gates::cuMemsetD32_v2_ptds(to, value, count); },
      [&] { return gates::cuMemsetD32Async_ptsz(to, value, count, nullptr); });
}

CUresult cuMemsetD2D32(api::CUdeviceptr_v1 to, unsigned int pitch, unsigned int value, unsigned int width,
                       unsigned int height) {
  return gates::cuMemsetD2D32(to, pitch, value, width, height);
}

CUresult cuMemsetD2D32_v2(CUdeviceptr to, std::size_t pitch, unsigned int value, std::size_t width,
                          std::size_t height) {
  return set(
      kNull, to, [&] { return gates::cuMemsetD2D32_v2(to, pitch, value, width, height); },
      [&] { return gates::cuMemsetD2D32Async(to, pitch, value, width, height, nullptr); });
}

CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr to, std::size_t pitch, unsigned int value, std::size_t width,
                               std::size_t height) {
  return set(
      kOwnOfThread, to, [&] { return gates::cuMemsetD2D32_v2_ptds(to, pitch, value, width, height); },
      [&] { return gates::cuMemsetD2D32Async_ptsz(to, pitch, value, width, height, nullptr); });
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, std::size_t ByteCount) {
  return copy(
      kNull, dst, src,
      [&] {
        return across(dst, src, ByteCount, kNull, [&] { return gates::cuMemcpy(dst, src, ByteCount); }, kPeer, true);
      },
      [&] { return gates::cuMemcpyAsync(dst, src, ByteCount, nullptr); });
}

CUresult cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src, std::size_t ByteCount) {
  return copy(
      kOwnOfThread, dst, src,
      [&] {
        return across(
            dst, src, ByteCount, kOwnOfThread, [&] { return gates::cuMemcpy_ptds(dst, src, ByteCount); }, kPeerOfThread,
            true);
      },
      [&] { return gates::cuMemcpyAsync_ptsz(dst, src, ByteCount, nullptr); });
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, std::size_t ByteCount, api::CUstream hStream) {
  return across(
      dst, src, ByteCount, hStream, [&] { return gates::cuMemcpyAsync(dst, src, ByteCount, hStream); }, kPeerAsync,
      true);
}

CUresult cuMemcpyAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, std::size_t ByteCount, api::CUstream hStream) {
  return across(
      dst, src, ByteCount, own_of_thread(hStream),
      [&] { return gates::cuMemcpyAsync_ptsz(dst, src, ByteCount, hStream); }, kPeerAsyncOfThread, true);
}

CUresult cuMemcpyDtoD(api::CUdeviceptr_v1 dstDevice, api::CUdeviceptr_v1 srcDevice, unsigned int ByteCount) {
  return gates::cuMemcpyDtoD(dstDevice, srcDevice, ByteCount);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, std::size_t ByteCount) {
  return copy(
      kNull, dstDevice, srcDevice,
      [&] {
        return across(
            dstDevice, srcDevice, ByteCount, kNull,
            [&] { return gates::cuMemcpyDtoD_v2(dstDevice, srcDevice, ByteCount); }, kPeer);
      },
      [&] { return gates::cuMemcpyDtoDAsync_v2(dstDevice, srcDevice, ByteCount, nullptr); });
}

CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr dstDevice, CUdeviceptr srcDevice, std::size_t ByteCount) {
  return copy(
      kOwnOfThread, dstDevice, srcDevice,
      [&] {
        return across(
            dstDevice, srcDevice, ByteCount, kOwnOfThread,
            [&] { return gates::cuMemcpyDtoD_v2_ptds(dstDevice, srcDevice, ByteCount); }, kPeerOfThread);
      },
      [&] { return gates::cuMemcpyDtoDAsync_v2_ptsz(dstDevice, srcDevice, ByteCount, nullptr); });
}

CUresult cuMemcpyDtoDAsync(api::CUdeviceptr_v1 dstDevice, api::CUdeviceptr_v1 srcDevice, unsigned int ByteCount,
                           api::CUstream hStream) {
  return gates::cuMemcpyDtoDAsync(dstDevice, srcDevice, ByteCount, hStream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, std::size_t ByteCount,
                              api::CUstream hStream) {
  return across(
      dstDevice, srcDevice, ByteCount, hStream,
      [&] { return gates::cuMemcpyDtoDAsync_v2(dstDevice, srcDevice, ByteCount, hStream); }, kPeerAsync);
}

CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr dstDevice, CUdeviceptr srcDevice, std::size_t ByteCount,
                                   api::CUstream hStream) {
  return across(
      dstDevice, srcDevice, ByteCount, own_of_thread(hStream),
      [&] { return gates::cuMemcpyDtoDAsync_v2_ptsz(dstDevice, srcDevice, ByteCount, hStream); }, kPeerAsyncOfThread);
}

CUresult cuMemcpyPeer(CUdeviceptr dstDevice, api::CUcontext dstContext, CUdeviceptr srcDevice,
                      api::CUcontext srcContext, std::size_t ByteCount) {
  return copy_peer(
      kNull, dstContext, dstDevice, srcContext, srcDevice, ByteCount,
      [&] { return gates::cuMemcpyPeer(dstDevice, dstContext, srcDevice, srcContext, ByteCount); },
      [&] { return gates::cuMemcpyPeerAsync(dstDevice, dstContext, srcDevice, srcContext, ByteCount, nullptr); },
      kPeer);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, api::CUcontext dstContext, CUdeviceptr srcDevice,
                           api::CUcontext srcContext, std::size_t ByteCount, api::CUstream hStream) {
  return across(
      dstDevice, srcDevice, ByteCount, hStream,
      [&] { return gates::cuMemcpyPeerAsync(dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream); },
      kPeerAsync);
}

CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr dstDevice, api::CUcontext dstContext, CUdeviceptr srcDevice,
                                api::CUcontext srcContext, std::size_t ByteCount, api::CUstream hStream) {
  return across(
      dstDevice, srcDevice, ByteCount, own_of_thread(hStream),
      [&] { return gates::cuMemcpyPeerAsync_ptsz(dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream); },
      kPeerAsyncOfThread);
}

CUresult cuMemcpyPeer_ptds(CUdeviceptr dstDevice, api::CUcontext dstContext, CUdeviceptr srcDevice,
                           api::CUcontext srcContext, std::size_t ByteCount) {
  return copy_peer(
      kOwnOfThread, dstContext, dstDevice, srcContext, srcDevice, ByteCount,
      [&] { return gates::cuMemcpyPeer_ptds(dstDevice, dstContext, srcDevice, srcContext, ByteCount); },
      [&] { return gates::cuMemcpyPeerAsync_ptsz(dstDevice, dstContext, srcDevice, srcContext, ByteCount, nullptr); },
      kPeerOfThread);
}

// Memory for which the program wants calls to wait.
CUresult cuPointerSetAttribute(const void* value, api::CUpointer_attribute attribute, CUdeviceptr ptr) {
  // For extents the driver is asked about plain memory and rota handles the rest: the driver refuses mapped memory.
  const CUdeviceptr stand_in = runtime().memory.twin(ptr);
  const CUresult result = stand_in != 0 ? real::cuPointerSetAttribute(value, attribute, stand_in)
                                        : gates::cuPointerSetAttribute(value, attribute, ptr);
  if (result == api::CUDA_SUCCESS && attribute == api::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    runtime().memory.set_synchronous(ptr, *static_cast<const unsigned*>(value) != 0);
  }
  return result;
}

}  // namespace rota::overrides
