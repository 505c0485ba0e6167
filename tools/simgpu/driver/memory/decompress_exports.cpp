// Hardware decompression: its operands are checked, but the decompression itself is not simulated.
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/memory/physical.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

bool lies_in_decompressible(const void* operand, size_t bytes) {
  const auto allocation = driver().memory.find(reinterpret_cast<uint64_t>(operand));
  if (!allocation || !decompressible(*allocation)) return false;
  return bytes <= allocation->bytes - (reinterpret_cast<uint64_t>(operand) - allocation->address);
}

CUresult decompress(const CUmemDecompressParams* all, size_t count, unsigned flags, size_t* error_index) {
  ROTA_SIM_CONTEXT(context);
  if (!decompresses()) return CUDA_ERROR_NOT_SUPPORTED;
  if (all == nullptr || count == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const int algorithms = driver().device_figures().attribute(CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK);
  for (size_t index = 0; index < count; ++index) {
    const CUmemDecompressParams& each = all[index];
    if ((each.algo & algorithms) != 0 && lies_in_decompressible(each.src, each.srcNumBytes) &&
        lies_in_decompressible(each.dst, each.dstNumBytes)) {
      continue;
    }
    if (error_index != nullptr) *error_index = index;
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

ROTA_SIM_EXPORT(cuMemBatchDecompressAsync)
(CUmemDecompressParams* all, size_t count, unsigned flags, size_t* error_index, CUstream /*stream*/) {
  ROTA_SIM_READY();
  return decompress(all, count, flags, error_index);
}
ROTA_SIM_EXPORT(cuMemBatchDecompressAsync_ptsz)
(CUmemDecompressParams* all, size_t count, unsigned flags, size_t* error_index, CUstream /*stream*/) {
  ROTA_SIM_READY();
  return decompress(all, count, flags, error_index);
}
