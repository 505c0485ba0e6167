#include "runtime/memory/swap/store/host_store.h"

#include "generated/driver_real.h"

namespace rota::memory {

api::CUresult HostStore::put(Slot slot, std::uint64_t bytes, api::CUdeviceptr address, std::span<const Part> parts,
                             api::CUstream stream) {
  pool_.pin_again(slot, bytes);
  for (const auto& [begin, end] : parts) {
    const api::CUresult result =
        real::cuMemcpyDtoHAsync_v2(static_cast<char*>(slot) + begin, address + begin, end - begin, stream);
    if (result != api::CUDA_SUCCESS) return result;
  }
  return api::CUDA_SUCCESS;
}

api::CUresult HostStore::get(Slot slot, std::uint64_t bytes, api::CUdeviceptr address, api::CUstream stream) {
  pool_.pin_again(slot, bytes);
  return real::cuMemcpyHtoDAsync_v2(address, slot, bytes, stream);
}

}  // namespace rota::memory
