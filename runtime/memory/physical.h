// Physical memory made by cuMemCreate. It lives as long as a handle to it or a mapping of it does, and the usual order
// is create, map, release the handle, use, unmap: so both are counted, or a program could exceed the limit by releasing
// early. An allocation is charged as a whole; its mappings are entries of the ledger that are not charged.
//
// Such memory that rota moves is in swap/own_physical.h instead.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/core/function_ref.h"
#include "runtime/memory/ledger.h"

namespace rota::memory {

class Physical {
 public:
  using Handle = api::CUmemGenericAllocationHandle;

  explicit Physical(Ledger& ledger) : ledger_(ledger), state_(std::make_unique<State>()) {}

  // cuMemCreate gave `handle`; its bytes are reserved on `device`.
  void created(Handle handle, int device, std::uint64_t bytes);
  // A descriptor of this or another process's memory was opened as `handle`. The process that created the memory is
  // charged.
  void imported(Handle handle);
  // cuMemRetainAllocationHandle gave `handle` for what is mapped at `address`.
  void retained(Handle handle, std::uint64_t address);
  // Runs cuMemRelease. Returns the GPU whose bytes are freed by it, or kNobody.
  api::CUresult release(Handle handle, FunctionRef<api::CUresult()> call, int* freed);
  void mapped(std::uint64_t address, std::uint64_t bytes, Handle handle);
  // Runs cuMemUnmap for every mapping in [address, address + size). Returns the GPUs whose bytes are freed by it.
  api::CUresult unmap(std::uint64_t address, std::uint64_t size, FunctionRef<api::CUresult()> call,
                      std::vector<int>* freed);

 private:
  struct Allocated {
    int device = kNobody;
    std::uint64_t bytes = 0;
    std::uint64_t handles = 0;
    std::uint64_t mappings = 0;
  };
  // A handle's number may be reused once it was released, while the old allocation is still mapped: so allocations have
  // their own numbers.
  struct State {
    std::mutex mutex;
    std::map<std::uint64_t, Allocated> allocated;
    std::map<Handle, std::uint64_t> handles;
    std::uint64_t last = 0;
  };

  // With the lock held. Removes `how_many` handles or mappings; returns the GPU whose bytes are freed by it, or
  // kNobody.
  int drop(std::uint64_t number, std::uint64_t Allocated::* count, std::uint64_t how_many);
  std::uint64_t fresh(Handle handle, const Allocated& what);

  Ledger& ledger_;
  std::unique_ptr<State> state_;
};

}  // namespace rota::memory
