// Plain memory as the driver gives it.
#pragma once

#include "runtime/memory/backend.h"

namespace rota::memory {

class NativeBackend final : public Backend {
 public:
  Backing backing() const override { return Backing::kDevice; }
  bool serves(int) override { return true; }
  api::CUresult allocate(const Place& place, api::CUdeviceptr* address, std::uint64_t bytes) override;
  void settle(const Place&, api::CUdeviceptr, std::uint64_t) override {}
  std::uint64_t bring(int, api::CUstream, const std::vector<Allocation>&) override { return 0; }
};

}  // namespace rota::memory
