// Whether host memory is mapped: unknown addresses must not be dereferenced.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace rota::sim {

inline bool host_pages_exist(uint64_t address, uint64_t bytes) {
  constexpr uint64_t kPage = 4096;
  unsigned char present[256];
  uint64_t end = 0;
  if (__builtin_add_overflow(address, bytes, &end) || __builtin_add_overflow(end, kPage - 1, &end)) return false;
  end = end / kPage * kPage;
  for (uint64_t page = address / kPage * kPage; page < end;) {
    uint64_t length = std::min<uint64_t>(sizeof present * kPage, end - page);
    if (mincore(reinterpret_cast<void*>(page), length, present) != 0) return false;
    page += length;
  }
  return true;
}

}  // namespace rota::sim
