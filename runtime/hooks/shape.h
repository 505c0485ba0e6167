// Copies in rows, expressed as copies between two contexts.
#pragma once

#include <cstddef>

#include "generated/driver_types.h"

namespace rota::overrides {

// The fields that only a copy of several planes of rows has.
struct Planes {
  std::size_t source = 0;  // the first
  std::size_t source_height = 0;
  std::size_t destination = 0;
  std::size_t destination_height = 0;
  std::size_t depth = 1;
};

// Without the contexts.
template <typename Copy>
api::CUDA_MEMCPY3D_PEER with_contexts(const Copy& copy, const Planes& planes) {
  return {.srcXInBytes = copy.srcXInBytes,
          .srcY = copy.srcY,
          .srcZ = planes.source,
          .srcLOD = 0,
          .srcMemoryType = copy.srcMemoryType,
          .srcHost = copy.srcHost,
          .srcDevice = copy.srcDevice,
          .srcArray = copy.srcArray,
          .srcContext = nullptr,
          .srcPitch = copy.srcPitch,
          .srcHeight = planes.source_height,
          .dstXInBytes = copy.dstXInBytes,
          .dstY = copy.dstY,
          .dstZ = planes.destination,
          .dstLOD = 0,
          .dstMemoryType = copy.dstMemoryType,
          .dstHost = copy.dstHost,
          .dstDevice = copy.dstDevice,
          .dstArray = copy.dstArray,
          .dstContext = nullptr,
          .dstPitch = copy.dstPitch,
          .dstHeight = planes.destination_height,
          .WidthInBytes = copy.WidthInBytes,
          .Height = copy.Height,
          .Depth = planes.depth};
}

inline api::CUDA_MEMCPY3D_PEER with_contexts(const api::CUDA_MEMCPY2D& copy) {
  return with_contexts(copy, {.source_height = copy.srcY + copy.Height, .destination_height = copy.dstY + copy.Height});
}

inline api::CUDA_MEMCPY3D_PEER with_contexts(const api::CUDA_MEMCPY3D& copy) {
  return with_contexts(copy, {copy.srcZ, copy.srcHeight, copy.dstZ, copy.dstHeight, copy.Depth});
}

inline const api::CUDA_MEMCPY3D_PEER& with_contexts(const api::CUDA_MEMCPY3D_PEER& copy) {
  return copy;
}

// A copy of so many bytes between linear memory and an array of one row; the addresses and arrays are still to be set.
inline api::CUDA_MEMCPY3D_PEER row_of(std::size_t bytes, api::CUmemorytype source, api::CUmemorytype destination) {
  api::CUDA_MEMCPY3D_PEER copy{};
  copy.srcMemoryType = source;
  copy.dstMemoryType = destination;
  copy.WidthInBytes = bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

inline api::CUDA_MEMCPY3D_PEER from_array(api::CUdeviceptr destination, api::CUarray source, std::size_t offset,
                                          std::size_t bytes) {
  api::CUDA_MEMCPY3D_PEER copy = row_of(bytes, api::CU_MEMORYTYPE_ARRAY, api::CU_MEMORYTYPE_DEVICE);
  copy.srcArray = source;
  copy.srcXInBytes = offset;
  copy.dstDevice = destination;
  return copy;
}

inline api::CUDA_MEMCPY3D_PEER to_array(api::CUarray destination, std::size_t offset, api::CUdeviceptr source,
                                        std::size_t bytes) {
  api::CUDA_MEMCPY3D_PEER copy = row_of(bytes, api::CU_MEMORYTYPE_DEVICE, api::CU_MEMORYTYPE_ARRAY);
  copy.dstArray = destination;
  copy.dstXInBytes = offset;
  copy.srcDevice = source;
  return copy;
}

}  // namespace rota::overrides
