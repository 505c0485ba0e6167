// Memory set aside for requests that have begun. When an allocation fails, the reserve is given back and the allocation
// tried again, so that what has begun is carried out and rotad's accounting stays complete. A request that needs more
// memory than there already is begins only while the reserve is whole; otherwise it is refused.
#pragma once

#include <cstddef>

namespace rota::server {

class MemoryReserve {
 public:
  // Far more than one request needs, with thousands of clients.
  static constexpr std::size_t kBytes = std::size_t{4} << 20;

  // Becomes the process's new handler. There is one at a time.
  MemoryReserve();
  ~MemoryReserve();
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;

  // Sets it aside again if it was used.
  bool is_whole();
};

}  // namespace rota::server
