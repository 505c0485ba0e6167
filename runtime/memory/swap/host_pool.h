// Memory of the host that memory of the GPU is copied to: pinned, in huge pages where the kernel has them, no part of a
// forked child and of no core dump.
//
// Pinning costs more than the copy itself (measured on an H200: 0.17 s for each GiB, a copy of it 0.02 s), so what has
// been pinned is kept for the next time.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace rota::memory {

class HostPool {
 public:
  HostPool() = default;
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // A block of exactly `bytes`, a multiple of the page size, that every context can copy from and to; null if the host
  // or the driver has none, also after what is kept in other sizes has been given back. With some context current.
  void* take(std::uint64_t bytes);
  void give(void* block, std::uint64_t bytes);
  // Gives what nobody has taken back to the host: bytes. With some context current.
  std::uint64_t trim();

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::vector<void*>> kept_;  // by size
};

}  // namespace rota::memory
