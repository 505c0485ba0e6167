// Physical memory that the program creates itself: as native memory, which stays on the GPU, or as a range that rota
// moves.
#include "runtime/memory/memory.h"
#include "scheduler/rules/largest_extent.h"

namespace rota::memory {

api::CUresult Memory::create_physical(Physical::Handle* handle, std::uint64_t bytes, int ordinal,
                                      const RealCall& call) {
  return with_waiting(ordinal, bytes, [&](bool first, RefusedBy& by) {
    Charge charge = reserve_or_wait(ordinal, bytes, Kind::kPhysical, by);
    if (!charge) return api::CUDA_ERROR_OUT_OF_MEMORY;
    const api::CUresult result = first ? with_room(ordinal, bytes, call) : call();
    if (result == api::CUDA_ERROR_OUT_OF_MEMORY) by = RefusedBy::kDriver;
    if (result != api::CUDA_SUCCESS) return result;
    charge.commit();
    physical_.created(*handle, ordinal, bytes);
    changed(ordinal);
    return result;
  });
}

std::optional<api::CUresult> Memory::create_moving(Physical::Handle* handle, std::uint64_t bytes,
                                                   const api::CUmemAllocationProp& wanted) {
  const std::optional<Making> making = OwnPhysical::can_move(wanted);
  const int ordinal = wanted.location.id;
  if (!making || ordinal < 0 || ordinal >= kMaxDevices) return std::nullopt;
  if (backend(ordinal).backing() != Backing::kSwapped || swap_.pinned()) return std::nullopt;
  // It is evicted and restored as a whole, but under a limit on the host's memory only one extent's bytes are kept free
  // there.
  if (bytes > protocol::kLargestExtent && swap_.host().limited()) return std::nullopt;
  // Leave it to the driver to refuse an invalid size.
  if (handle == nullptr || bytes == 0 || bytes % swap_.granularity(ordinal) != 0) return std::nullopt;
  BackendReservation reservation(swap_, ordinal, bytes, bytes);
  Charge charge = reserve(ordinal, bytes, Kind::kMovingPhysical);
  if (!charge) return api::CUDA_ERROR_OUT_OF_MEMORY;
  api::CUdeviceptr range = 0;
  const auto call = [&] {
    return reservation.allocate([&] { return swap_.allocate_own(ordinal, &range, bytes, *making); });
  };
  const api::CUresult result = reservation ? with_room(ordinal, 0, call) : call();
  if (reservation && result == api::CUDA_ERROR_OUT_OF_MEMORY) say_refused(ordinal);
  if (result == api::CUDA_SUCCESS) {
    charge.commit();
    *handle = own_physical_.created(range, bytes, wanted);
    changed(ordinal);
    return result;
  }
  if (result == api::CUDA_ERROR_OUT_OF_MEMORY) return result;
  return std::nullopt;  // perhaps it can be created, though not mapped here and now
}

api::CUresult Memory::release_physical(Physical::Handle handle, const RealCall& call) {
  int freed = kNobody;
  const api::CUresult result =
      OwnPhysical::is_ours(handle) ? own_physical_.release(handle, &freed) : physical_.release(handle, call, &freed);
  if (freed != kNobody) changed(freed);
  return result;
}

void Memory::pin(api::CUdeviceptr address, std::uint64_t bytes, protocol::Pin why) {
  swap_.pin(address, why);
  if (own_physical_.any()) own_physical_.pin(address, bytes, why);
}

api::CUresult Memory::unmap(std::uint64_t address, std::uint64_t bytes, const OwnPhysical::UnmapPart& call) {
  std::vector<int> freed;
  const auto all = [&] { return own_physical_.unmap(address, bytes, call, &freed); };
  const api::CUresult result = physical_.unmap(address, bytes, all, &freed);
  for (const int ordinal : freed) changed(ordinal);
  return result;
}

}  // namespace rota::memory
