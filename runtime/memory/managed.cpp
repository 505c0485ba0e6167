#include "runtime/memory/managed.h"

#include "generated/driver_real.h"
#include "runtime/driver/answers.h"
#include "runtime/driver/capture_mode.h"

namespace rota::memory {

namespace {

// Prefetching less costs more than the fault that it saves.
constexpr std::uint64_t kWorthPrefetching = std::uint64_t{64} << 10;

// The first forms take a device ordinal and are in every driver so far; the second ones came with CUDA 12.2.
api::CUresult prefetch(api::CUdeviceptr address, std::uint64_t bytes, int device, api::CUstream stream) {
  const api::CUresult result = real::cuMemPrefetchAsync(address, bytes, device, stream);
  if (!driver::lacks_function(result)) return result;
  const api::CUmemLocation location{.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return real::cuMemPrefetchAsync_v2(address, bytes, location, 0, stream);
}

api::CUresult prefer(api::CUdeviceptr address, std::uint64_t bytes, int device) {
  const api::CUresult result = real::cuMemAdvise(address, bytes, api::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device);
  if (!driver::lacks_function(result)) return result;
  const api::CUmemLocation location{.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return real::cuMemAdvise_v2(address, bytes, api::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location);
}

}  // namespace

ManagedBackend::Suitability ManagedBackend::suitability(int device) {
  std::atomic<Suitability>& known = suitability_[static_cast<std::size_t>(device)];
  if (const Suitability answer = known.load(std::memory_order_relaxed); answer != Suitability::kUnknown) return answer;
  const auto has = [&](api::CUdevice_attribute attribute) {
    int value = 0;
    return real::cuDeviceGetAttribute(&value, attribute, device) == api::CUDA_SUCCESS && value != 0;
  };
  Suitability answer = Suitability::kSuitable;
  if (!has(api::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)) {
    answer = Suitability::kNoManaged;
  } else if (!has(api::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)) {
    answer = Suitability::kNoPaging;
  }
  known.store(answer, std::memory_order_relaxed);
  return answer;
}

api::CUresult ManagedBackend::allocate(const Place& place, api::CUdeviceptr* address, std::uint64_t bytes) {
  const api::CUresult result = real::cuMemAllocManaged(address, bytes, api::CU_MEM_ATTACH_GLOBAL);
  if (result == api::CUDA_ERROR_NOT_SUPPORTED) {
    // As a vGPU may whose attributes promise it.
    suitability_[static_cast<std::size_t>(place.device)].store(Suitability::kNoManaged, std::memory_order_relaxed);
  }
  return result;
}

void ManagedBackend::settle(const Place& place, api::CUdeviceptr address, std::uint64_t bytes) {
  const driver::RelaxedCapture relaxed;
  prefer(address, bytes, place.device);
  // While others have the GPU nothing is moved there.
  if (bytes < kWorthPrefetching) return;
  const auto bring_now = [&] {
    if (const api::CUstream stream = streams_.in(place.context); stream != nullptr) {
      prefetch(address, bytes, place.device, stream);
    }
  };
  if_our_turn_(std::cref(bring_now));
}

std::uint64_t ManagedBackend::bring(int device, api::CUstream stream, const std::vector<Allocation>& all) {
  std::uint64_t bytes = 0;
  for (const Allocation& allocation : all) {
    if (allocation.bytes < kWorthPrefetching) continue;
    if (prefetch(allocation.address, allocation.bytes, device, stream) == api::CUDA_SUCCESS) bytes += allocation.bytes;
  }
  return bytes;
}

}  // namespace rota::memory
