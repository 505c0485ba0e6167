// What the driver's pools are: whom memory of a pool is charged to, and whether there can be more of it than the GPU
// has. Drivers of CUDA 13.0 and before do not tell of a pool that exists (measured), so those that the program makes
// are noted, and the default ones are recognised.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/memory/ledger.h"

namespace rota::memory {

class Pools {
 public:
  struct Pool {
    // nullopt: the GPU of the stream that allocates (a managed pool without a place of its own).
    std::optional<int> device;
    Kind kind = Kind::kAsync;
    // Whether rota may serve its memory in the driver's place: plain memory of a GPU, which no other process can open.
    bool replaceable = false;
    std::uint64_t maximum = UINT64_MAX;  // bytes that there may be of it
  };

  Pools() : state_(std::make_unique<State>()) {}

  static Pool described(const api::CUmemPoolProps& properties);
  // A place's default pool.
  static Pool described(const api::CUmemLocation& location, api::CUmemAllocationType type);
  void made(api::CUmemoryPool pool, const Pool& what);
  // A pool that lies where `what` says. Changes nothing about one that is known.
  void named(api::CUmemoryPool pool, const Pool& what);
  // The program's handle is about to go; the pool itself lives on while memory of it does. To be made() again if the
  // driver refuses.
  std::optional<Pool> forget(api::CUmemoryPool pool);
  // The program chose a GPU's current pool: from now on that has to be asked for, and until then it is the default one.
  void chosen() { chosen_.store(true, std::memory_order_relaxed); }

  // A pool by its handle; one that nobody told us of is taken for a default pool of the GPU that has it, or else for
  // one of `device`.
  Pool look_up(api::CUmemoryPool pool, int device);
  // The pool that cuMemAllocAsync takes from in a stream of `device`, and its handle (null: the driver does not say).
  Pool current(int device, api::CUmemoryPool* handle);

 private:
  struct State {
    std::mutex mutex;
    std::map<api::CUmemoryPool, Pool> pools;
  };
  std::unique_ptr<State> state_;
  std::atomic<bool> chosen_{false};
  std::array<std::atomic<api::CUmemoryPool>, kMaxDevices> default_{};
};

}  // namespace rota::memory
