// What is known about the driver's pools: which GPU memory of a pool is charged to, and whether there can be more of it
// than the GPU has. Drivers up to CUDA 13.0 report nothing about an existing pool (measured), so pools that the program
// creates are recorded, and the default ones are recognized.
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
    // nullopt: the GPU of the stream that allocates (a managed pool without its own location).
    std::optional<int> device;
    Kind kind = Kind::kAsync;
    // Whether rota may serve its memory instead of the driver: plain memory of a GPU, which no other process can open.
    bool replaceable = false;
    std::uint64_t maximum = UINT64_MAX;  // the most bytes that it may have
    bool destroyed = false;              // or never made: the driver knows no such pool
  };

  Pools() : state_(std::make_unique<State>()) {}

  static Pool described(const api::CUmemPoolProps& properties);
  // A place's default pool.
  static Pool described(const api::CUmemLocation& location, api::CUmemAllocationType type);
  void made(api::CUmemoryPool pool, const Pool& what);
  // A pool that lies where `what` says. Changes nothing about one that is known.
  void named(api::CUmemoryPool pool, const Pool& what);
  // The program is about to destroy the pool; it lives on while memory of it does. Call made() again if the driver
  // refuses.
  std::optional<Pool> forget(api::CUmemoryPool pool);
  // The program set a GPU's current pool: from now on it has to be queried; before that it is the default one.
  void chosen() { chosen_.store(true, std::memory_order_relaxed); }

  // A pool by its handle; an unknown one is taken for a default pool of the GPU that has it, or else of `device`,
  // unless the driver knows none.
  Pool look_up(api::CUmemoryPool pool, int device);
  // The pool that cuMemAllocAsync uses in a stream of `device`, and its handle (null: the driver does not say).
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
