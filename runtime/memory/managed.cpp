#include "runtime/memory/managed.h"

#include "generated/driver_real.h"
#include "runtime/core/log.h"
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

bool ManagedBackend::serves(int device) {
  std::atomic<Answer>& known = pages_by_itself_[static_cast<std::size_t>(device)];
  if (const Answer answer = known.load(std::memory_order_relaxed); answer != Answer::kUnknown) {
    return answer == Answer::kYes;
  }
  int concurrent = 0;
  real::cuDeviceGetAttribute(&concurrent, api::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device);
  if (concurrent == 0) {
    static log::Once once;
    if (once.first()) log::info("GPU {} cannot page managed memory by itself: memory there stays native", device);
  }
  known.store(concurrent != 0 ? Answer::kYes : Answer::kNo, std::memory_order_relaxed);
  return concurrent != 0;
}

api::CUresult ManagedBackend::allocate(const Place&, api::CUdeviceptr* address, std::uint64_t bytes) {
  return real::cuMemAllocManaged(address, bytes, api::CU_MEM_ATTACH_GLOBAL);
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
