// Copies in rows as such between two contexts.
#pragma once

#include "generated/driver_types.h"

namespace rota::overrides {

// The contexts are left out.
inline api::CUDA_MEMCPY3D_PEER with_contexts(const api::CUDA_MEMCPY2D& copy) {
  return {.srcXInBytes = copy.srcXInBytes,
          .srcY = copy.srcY,
          .srcZ = 0,
          .srcLOD = 0,
          .srcMemoryType = copy.srcMemoryType,
          .srcHost = copy.srcHost,
          .srcDevice = copy.srcDevice,
          .srcArray = copy.srcArray,
          .srcContext = nullptr,
          .srcPitch = copy.srcPitch,
          .srcHeight = copy.srcY + copy.Height,
          .dstXInBytes = copy.dstXInBytes,
          .dstY = copy.dstY,
          .dstZ = 0,
          .dstLOD = 0,
          .dstMemoryType = copy.dstMemoryType,
          .dstHost = copy.dstHost,
          .dstDevice = copy.dstDevice,
          .dstArray = copy.dstArray,
          .dstContext = nullptr,
          .dstPitch = copy.dstPitch,
          .dstHeight = copy.dstY + copy.Height,
          .WidthInBytes = copy.WidthInBytes,
          .Height = copy.Height,
          .Depth = 1};
}

inline api::CUDA_MEMCPY3D_PEER with_contexts(const api::CUDA_MEMCPY3D& copy) {
  return {.srcXInBytes = copy.srcXInBytes,
          .srcY = copy.srcY,
          .srcZ = copy.srcZ,
          .srcLOD = copy.srcLOD,
          .srcMemoryType = copy.srcMemoryType,
          .srcHost = copy.srcHost,
          .srcDevice = copy.srcDevice,
          .srcArray = copy.srcArray,
          .srcContext = nullptr,
          .srcPitch = copy.srcPitch,
          .srcHeight = copy.srcHeight,
          .dstXInBytes = copy.dstXInBytes,
          .dstY = copy.dstY,
          .dstZ = copy.dstZ,
          .dstLOD = copy.dstLOD,
          .dstMemoryType = copy.dstMemoryType,
          .dstHost = copy.dstHost,
          .dstDevice = copy.dstDevice,
          .dstArray = copy.dstArray,
          .dstContext = nullptr,
          .dstPitch = copy.dstPitch,
          .dstHeight = copy.dstHeight,
          .WidthInBytes = copy.WidthInBytes,
          .Height = copy.Height,
          .Depth = copy.Depth};
}

}  // namespace rota::overrides
