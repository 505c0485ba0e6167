// The host's memory as a store: a slot is a block of the pool, and the copy engines write to it and read from it.
#pragma once

#include "runtime/memory/swap/store/host_pool.h"
#include "runtime/memory/swap/store/store.h"

namespace rota::memory {

class HostStore final : public Store {
 public:
  explicit HostStore(HostPool& pool) : pool_(pool) {}

  Slot reserve(std::uint64_t bytes, int device) override { return pool_.take(bytes, pool_.node_of(device)); }
  api::CUresult put(Slot slot, std::uint64_t bytes, api::CUdeviceptr address, std::span<const Part> parts,
                    api::CUstream stream) override;
  api::CUresult get(Slot slot, std::uint64_t bytes, api::CUdeviceptr address, api::CUstream stream) override;
  void release(Slot slot, std::uint64_t bytes) override { pool_.end(slot, bytes); }
  void discard(Slot slot, std::uint64_t bytes) override { pool_.give(slot, bytes); }
  void context_ended(api::CUcontext context) override { pool_.context_ended(context); }

 private:
  HostPool& pool_;
};

}  // namespace rota::memory
