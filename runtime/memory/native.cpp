#include "runtime/memory/native.h"

#include "generated/driver_real.h"

namespace rota::memory {

api::CUresult NativeBackend::allocate(const Place&, api::CUdeviceptr* address, std::uint64_t bytes) {
  return real::cuMemAlloc_v2(address, bytes);
}

}  // namespace rota::memory
