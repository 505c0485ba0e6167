// Plain memory served as Unified Memory of the allocating GPU: its preferred location is set, and it is prefetched
// there while the process holds the GPU, since faults at the first touch cost 17 times as much (measured). For the
// program it differs in one visible respect: CU_POINTER_ATTRIBUTE_IS_MANAGED is true.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "runtime/driver/own_streams.h"
#include "runtime/memory/backend.h"
#include "runtime/memory/turns.h"

namespace rota::memory {

class ManagedBackend final : public Backend {
 public:
  // Call it before memory is allocated.
  void set_turns(Turns& turns) { turns_ = &turns; }

  Backing backing() const override { return Backing::kUnified; }
  // False if the GPU has no managed memory, or cannot page it by itself: the driver then moves all of it at each
  // launch, and the CPU may not touch any meanwhile.
  bool serves(int device) override { return suitability(device) == Suitability::kSuitable; }
  // The driver is asked once for each GPU; a refused allocation changes the answer.
  enum class Suitability : std::uint8_t { kUnknown, kSuitable, kNoManaged, kNoPaging };
  Suitability suitability(int device);
  api::CUresult allocate(const Place& place, api::CUdeviceptr* address, std::uint64_t bytes) override;
  void place_allocation(const Place& place, api::CUdeviceptr address, std::uint64_t bytes) override;
  void set_access(const Place& place, api::CUdeviceptr address, std::uint64_t bytes, int accessing,
                  api::CUmemAccess_flags flags) override;
  Moved evict(int device, std::uint64_t bytes, const Move& move) override;
  Moved restore(int device, const Move& move) override;
  void context_ended(api::CUcontext context) override { streams_.forget(context); }

 private:
  Turns* turns_ = &WithoutTurns::instance();
  driver::OwnStreams streams_;
  std::array<std::atomic<Suitability>, kMaxDevices> suitability_{};
};

}  // namespace rota::memory
