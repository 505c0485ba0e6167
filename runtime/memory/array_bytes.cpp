#include "runtime/memory/array_bytes.h"

#include <algorithm>
#include <initializer_list>

namespace rota::memory {

std::uint64_t array_bytes(std::uint64_t width, std::uint64_t height, std::uint64_t depth, unsigned channels,
                          api::CUarray_format format, unsigned flags, unsigned levels) {
  // cuda.h has these as macros: CUDA_ARRAY3D_LAYERED, _CUBEMAP, _SPARSE, _DEFERRED_MAPPING.
  constexpr unsigned kLayered = 0x01, kCubemap = 0x04, kSparse = 0x40, kDeferredMapping = 0x80;
  if ((flags & (kSparse | kDeferredMapping)) != 0) return 0;
  std::uint64_t element = 4;
  switch (format) {
    case api::CU_AD_FORMAT_UNSIGNED_INT8:
    case api::CU_AD_FORMAT_SIGNED_INT8:
      element = 1;
      break;
    case api::CU_AD_FORMAT_UNSIGNED_INT16:
    case api::CU_AD_FORMAT_SIGNED_INT16:
    case api::CU_AD_FORMAT_HALF:
      element = 2;
      break;
    default:  // 32-bit formats; compressed and video formats take less; better to charge too much than too little
      break;
  }
  std::uint64_t sum = 0;
  bool absurd = false;  // more than 64 bits can say
  const bool cube_or_layered = (flags & (kLayered | kCubemap)) != 0;
  for (unsigned level = 0; level < std::max(levels, 1U); ++level) {
    std::uint64_t size = element;
    for (const std::uint64_t factor : {width, height, depth, std::uint64_t{channels}}) {
      absurd |= __builtin_mul_overflow(size, std::max<std::uint64_t>(factor, 1), &size);
    }
    absurd |= __builtin_add_overflow(sum, size, &sum);
    if (width <= 1 && height <= 1 && (cube_or_layered || depth <= 1)) break;
    width = std::max<std::uint64_t>(width / 2, 1);
    height /= 2;
    if (!cube_or_layered) depth /= 2;
  }
  return absurd ? 0 : sum;
}

}  // namespace rota::memory
