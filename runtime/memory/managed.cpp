#include "runtime/memory/managed.h"

#include "generated/driver_real.h"
#include "runtime/driver/capture_mode.h"
#include "runtime/memory/unified.h"

namespace rota::memory {

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
    // A vGPU may refuse although its attributes promise managed memory.
    suitability_[static_cast<std::size_t>(place.device)].store(Suitability::kNoManaged, std::memory_order_relaxed);
  }
  return result;
}

void ManagedBackend::place_allocation(const Place& place, api::CUdeviceptr address, std::uint64_t bytes) {
  const driver::RelaxedCapture relaxed;
  unified::advise(address, bytes, api::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place.device);
  // While others have the GPU, nothing is moved there.
  if (bytes < unified::kWorthMoving) return;
  const auto prefetch = [&] {
    if (const api::CUstream stream = streams_.in(place.context); stream != nullptr) {
      unified::prefetch(address, bytes, place.device, stream);
    }
  };
  turns_->if_our_turn(place.device, prefetch);
}

// Any GPU can use Unified Memory. With this advice it stays where it is and is mapped on the other GPU (peers.h).
void ManagedBackend::set_access(const Place&, api::CUdeviceptr address, std::uint64_t bytes, int accessing,
                                api::CUmemAccess_flags flags) {
  const driver::RelaxedCapture relaxed;
  unified::advise(address, bytes,
                  flags == api::CU_MEM_ACCESS_FLAGS_PROT_NONE ? api::CU_MEM_ADVISE_UNSET_ACCESSED_BY
                                                              : api::CU_MEM_ADVISE_SET_ACCESSED_BY,
                  accessing);
}

namespace {

// Starts to move the allocations, in the stream. The current context is the stream's.
Moved prefetch(int to, const Move& move) {
  Moved moved;
  for (const Allocation& range : move.ranges) {
    if (unified::prefetch(range.address, range.bytes, to, move.stream) == api::CUDA_SUCCESS) moved.bytes += range.bytes;
  }
  return moved;
}

}  // namespace

Moved ManagedBackend::evict(int, std::uint64_t, const Move& move) {
  return prefetch(unified::kHost, move);
}

Moved ManagedBackend::restore(int device, const Move& move) {
  return prefetch(device, move);
}

}  // namespace rota::memory
