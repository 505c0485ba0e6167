// /etc/ld.so.cache, as the preload reads it in every process that calls CUDA.
#include <cstring>
#include <memory>

#include "runtime/preload/cuda/ld_cache.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const char* const bytes = reinterpret_cast<const char*>(data);
  std::uint32_t cursor = 0;
  for (std::uint32_t before = 0; const char* path = rota::thin::next_in_ld_cache(bytes, size, "libcuda.so.1", &cursor);
       before = cursor) {
    CHECK(cursor > before);
    CHECK(path >= bytes && path + std::strlen(path) < bytes + size && path[0] == '/');
  }
  return 0;
}
