// Peer access to converted memory. Plain memory of a context can be used from another GPU once the context there has
// been given access to it (cuCtxEnablePeerAccess), where it lies. Unified Memory can be used from everywhere, but the
// first use from another GPU is a fault, which may move the memory there. Advised to be accessed by that GPU it stays,
// and is mapped there for as long as it lives.
//
// Access is the context's that asked for it, advice is the GPU's: the last context of a GPU that gives its access back,
// or ends, takes the advice with it. So it is with extents, which are mapped for a GPU or are not. Memory of pools is
// not reached by this access (it has cuMemPoolSetAccess), so what rota serves in the place of a pool is left alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/memory/backend.h"
#include "runtime/memory/ledger.h"

namespace rota::memory {

class Peers {
 public:
  // Some context of the GPU `accessing` may use some of the GPU `owner` from now on, or none may any more. Called in
  // the order of these changes, perhaps again for one that holds already.
  using Mapped = std::function<void(int accessing, int owner, bool may)>;

  Peers(const Ledger& ledger, Mapped mapped) : ledger_(ledger), mapped_(std::move(mapped)) {}

  // --- the program's threads, with some context current. A call of the driver's for each range of the owner's.

  // `accessing`, a context and its GPU, may use the memory of `owner` from now on.
  void enabled(const Place& accessing, const Place& owner);
  void disabled(const Place& accessing, api::CUcontext owner);
  // A fresh range of converted memory, which the ledger has. One load while nobody has peer access.
  void settled(const Place& owner, std::uint64_t address, std::uint64_t bytes);
  // Its access, and that of others to its memory, goes with it.
  void context_ended(api::CUcontext context);

 private:
  struct Access {
    Place accessing;
    Place owner;
  };

  void advise(const Place& owner, api::CUmem_advise advice, int device) const;
  bool reaches(int device, api::CUcontext owner) const;
  bool reaches(int device, int owner) const;
  template <typename Which>
  void end(const Which& which);

  const Ledger& ledger_;
  const Mapped mapped_;
  std::atomic<bool> any_{false};
  std::mutex mutex_;  // held while the driver is advised: who comes later has the last word
  std::vector<Access> accesses_;
};

}  // namespace rota::memory
