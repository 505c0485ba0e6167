// Plain memory as the driver gives it.
#pragma once

#include "runtime/memory/backend.h"

namespace rota::memory {

class NativeBackend final : public Backend {
 public:
  Backing backing() const override { return Backing::kDevice; }
  bool serves(int) override { return true; }
  api::CUresult allocate(const Place& place, api::CUdeviceptr* address, std::uint64_t bytes) override;
  void place_allocation(const Place&, api::CUdeviceptr, std::uint64_t) override {}
  // It is never evicted.
  Moved evict(int, std::uint64_t, const Move&) override { return {}; }
  Moved restore(int, const Move&) override { return {}; }
};

}  // namespace rota::memory
