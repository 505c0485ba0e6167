// Physical memory made by cuMemCreate. It lives as long as a handle to it or a mapping of it does, and the usual order
// is create, map, release the handle, use, unmap: so both are counted, or the limit could be passed by releasing early.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace rota::memory {

struct PhysicalBytes {
  int device;
  std::uint64_t bytes;
};

class Physical {
 public:
  void created(std::uint64_t handle, int device, std::uint64_t bytes);
  // cuMemRetainAllocationHandle gave `handle` for the memory mapped at `address`.
  void retained(std::uint64_t handle, std::uint64_t address);
  void mapped(std::uint64_t address, std::uint64_t handle);
  // These return what is free for good with this call, if anything.
  std::optional<PhysicalBytes> released(std::uint64_t handle);
  // Every mapping in [address, address + size).
  std::map<int, std::uint64_t> unmapped(std::uint64_t address, std::uint64_t size);
  void after_fork_in_child();

 private:
  struct Piece {
    int device;
    std::uint64_t bytes;
    unsigned handles = 1;
    unsigned mappings = 0;
  };
  std::mutex mutex_;
  // A handle's number may be given out again once it was released, while the old piece is still mapped: mappings point
  // to the piece itself.
  std::map<std::uint64_t, std::shared_ptr<Piece>> handles_;
  std::map<std::uint64_t, std::shared_ptr<Piece>> mappings_;  // by first address
};

}  // namespace rota::memory
