// Peer access to converted memory. Plain memory of a context can be used from another GPU once the context there has
// been given access to it (cuCtxEnablePeerAccess), where it lies. Unified Memory can be used from everywhere, but the
// first use from another GPU is a fault, which may move the memory there. If it is advised to be accessed by that GPU,
// it stays and remains mapped there as long as it lives.
//
// Access belongs to the context that asked for it, advice to the GPU: when the last context of a GPU gives its access
// back or ends, the advice ends. The same holds for extents, which are mapped for a GPU or not. This access does not
// cover memory of pools (that has cuMemPoolSetAccess), so memory that rota serves instead of a pool is not changed.
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
  // From now on some context of the GPU `accessing` may use some context's memory on the GPU `owner`, or none may any
  // more. Called in the order of these changes, possibly again for one that is already in effect.
  using Mapped = std::function<void(int accessing, int owner, bool may)>;

  Peers(const Ledger& ledger, Mapped mapped) : ledger_(ledger), mapped_(std::move(mapped)) {}

  // --- the program's threads, with some context current. One driver call for each allocation of the owner's.

  // `accessing`, a context and its GPU, may use the memory of `owner` from now on.
  void enabled(const Place& accessing, const Place& owner);
  void disabled(const Place& accessing, api::CUcontext owner);
  // A new allocation of converted memory is in the ledger: advises it for the GPUs with access. One load while nobody
  // has peer access.
  void placed(const Place& owner, std::uint64_t address, std::uint64_t bytes);
  // A context's access, and that of others to its memory, ends with it.
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
  std::mutex mutex_;  // held while the driver is advised, so that the latest change wins
  std::vector<Access> accesses_;
};

}  // namespace rota::memory
