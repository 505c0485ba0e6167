// A backend serves plain memory (cuMemAlloc, cuMemAllocPitch) and the spans of stream-ordered and of small plain
// memory; this is the one interface behind which backends differ. Memory (memory.h) checks limits, keeps the ledger and
// chooses the backend; a backend only gets memory from the driver and places it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/core/undo.h"
#include "runtime/memory/ledger.h"
#include "runtime/memory/move.h"

namespace rota::memory {

// Where an allocation is made.
struct Place {
  api::CUcontext context =
      nullptr;  // the allocation ends with this context; null: it ends with none, which only extents support
  int device = 0;
};

class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // The kind of its memory in the ledger; the route is Route::kPlain.
  virtual Backing backing() const = 0;
  // Whether it can serve memory on this GPU at all.
  virtual bool serves(int device) = 0;
  // Reserves memory for an allocation that is about to be made; returns false and takes nothing if it could never fit
  // on the GPU next to what stays there. Waits for no GPU work. allocate() takes the reservation over if it succeeds;
  // otherwise release() gives it back. `uncounted`: what the ledger does not have yet of that allocation's bytes. If it
  // returns false, `for_others` says whether the reason is memory that others have there, and may free; for any other
  // reason a line says which.
  virtual bool reserve(int, std::uint64_t, std::uint64_t /*uncounted*/, bool& /*for_others*/) { return true; }
  virtual void release(int, std::uint64_t) {}
  // In the context of `place`, which is current; `bytes` is not 0. Returns the driver's result; does not wait for the
  // GPU.
  virtual api::CUresult allocate(const Place& place, api::CUdeviceptr* address, std::uint64_t bytes) = 0;
  // Called once the allocation is in the ledger: moves it to where plain memory would be. A failure costs time, not
  // correctness.
  virtual void place_allocation(const Place& place, api::CUdeviceptr address, std::uint64_t bytes) = 0;
  // Called by the monitor, with nothing of this process running on the GPU and its gate closed. evict() moves memory
  // off the GPU until others can have `bytes` more there, or as far as possible; restore() moves it back before work
  // runs. Of Unified Memory both only start the transfers, and count what they have started: page faults move the rest.
  virtual Moved evict(int device, std::uint64_t bytes, const Move& move) = 0;
  virtual Moved restore(int device, const Move& move) = 0;
  // Allows or forbids (CU_MEM_ACCESS_FLAGS_PROT_NONE) the use of a pool's span by the GPU of this ordinal. The context
  // of `place` is current, if it has one. Waits for no work.
  virtual void set_access(const Place&, api::CUdeviceptr, std::uint64_t, int, api::CUmemAccess_flags) {}
  // The context has ended, and with it what the backend had in it.
  virtual void context_ended(api::CUcontext) {}
};

// A backend's reservation for one allocation, given back at the end of the scope unless the allocation has taken it
// over, even if the thread is cancelled.
class BackendReservation {
 public:
  BackendReservation(Backend& backend, int device, std::uint64_t bytes, std::uint64_t uncounted,
                     const void* frame = __builtin_dwarf_cfa())
      : backend_(backend),
        bytes_(bytes),
        undo_(
            [](void* of, int gpu, std::uint64_t held, std::uint32_t) { static_cast<Backend*>(of)->release(gpu, held); },
            &backend, device, bytes, 0, frame),
        held_(backend.reserve(device, bytes, uncounted, for_others_)) {
    if (held_) undo_.begin();
  }
  BackendReservation(const BackendReservation&) = delete;
  BackendReservation& operator=(const BackendReservation&) = delete;
  // Whether the backend has reserved the bytes.
  explicit operator bool() const { return held_; }
  // Whether there is none since others have memory there, which they may free.
  bool for_others() const { return for_others_; }
  api::CUresult allocate(const Place& place, api::CUdeviceptr* address) {
    return allocate([&] { return backend_.allocate(place, address, bytes_); });
  }
  // Allocates by `how`, another function of the backend's, which takes the reservation over if it succeeds.
  template <typename How>
  api::CUresult allocate(const How& how) {
    if (!held_) return api::CUDA_ERROR_OUT_OF_MEMORY;
    const api::CUresult result = how();
    held_ = result != api::CUDA_SUCCESS;
    if (!held_) undo_.commit();
    return result;
  }

 private:
  Backend& backend_;
  const std::uint64_t bytes_;
  Undo undo_;
  bool for_others_ = false;
  bool held_;
};

}  // namespace rota::memory
