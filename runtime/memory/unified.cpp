#include "runtime/memory/unified.h"

#include "generated/driver_real.h"
#include "runtime/driver/answers.h"

namespace rota::memory::unified {

namespace {

api::CUmemLocation location_of(int device) {
  if (device == kHost) return {.type = api::CU_MEM_LOCATION_TYPE_HOST, .id = 0};
  return {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

}  // namespace

api::CUresult prefetch(api::CUdeviceptr address, std::uint64_t bytes, int to, api::CUstream stream) {
  const api::CUresult result = real::cuMemPrefetchAsync(address, bytes, to, stream);
  if (!driver::lacks_function(result)) return result;
  return real::cuMemPrefetchAsync_v2(address, bytes, location_of(to), 0, stream);
}

api::CUresult advise(api::CUdeviceptr address, std::uint64_t bytes, api::CUmem_advise advice, int device) {
  const api::CUresult result = real::cuMemAdvise(address, bytes, advice, device);
  if (!driver::lacks_function(result)) return result;
  return real::cuMemAdvise_v2(address, bytes, advice, location_of(device));
}

}  // namespace rota::memory::unified
