// Where the contents of extents lie while they are not on a GPU. The code that moves extents knows only this interface,
// so that another kind of memory (a file, a block device) can take the host's place.
//
// Once an extent has a slot, its contents fit there, whatever happens to other extents.
#pragma once

#include <cstdint>
#include <span>

#include "generated/driver_types.h"

namespace rota::memory {

class Store {
 public:
  // Space for one extent, by the store's own number; null: none.
  using Slot = void*;
  // A part of an extent's contents, as [begin, end) in bytes from its beginning.
  struct Part {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  Store() = default;
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // --- the monitor, with some context current

  // Space for the `bytes` of an extent of this GPU; null: there is none now.
  virtual Slot reserve(std::uint64_t bytes, int device) = 0;
  // put() begins to copy parts of the contents of the extent at `address` to the slot, get() to copy all of them back,
  // in a stream of the current context. Both return the driver's result; on an error some of the copies may have begun.
  virtual api::CUresult put(Slot slot, std::uint64_t bytes, api::CUdeviceptr address, std::span<const Part> parts,
                            api::CUstream stream) = 0;
  virtual api::CUresult get(Slot slot, std::uint64_t bytes, api::CUdeviceptr address, api::CUstream stream) = 0;
  // Gives the space back at once, so that other processes can use it.
  virtual void release(Slot slot, std::uint64_t bytes) = 0;

  // --- any thread

  // The contents are not needed any more, and no copy is under way: the space may serve another extent.
  virtual void discard(Slot slot, std::uint64_t bytes) = 0;
  // A context has ended. Calls no driver.
  virtual void context_ended(api::CUcontext context) = 0;
};

}  // namespace rota::memory
