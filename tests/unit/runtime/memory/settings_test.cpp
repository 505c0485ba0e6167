#include "runtime/memory/settings.h"

#include <catch2/catch.hpp>
#include <cstdlib>

using namespace rota::memory;

TEST_CASE("a bad value of the environment sets no limit and the usual backend") {
  setenv("ROTA_GPU_MEM_LIMIT", "lots", 1);
  setenv("ROTA_MEMORY", "magic", 1);
  Settings settings = settings_from_environment();
  CHECK(settings.limit_bytes == kNoLimit);
  CHECK(settings.backend == Choice::kAutomatic);
  setenv("ROTA_GPU_MEM_LIMIT", "1G", 1);
  setenv("ROTA_MEMORY", "native", 1);
  settings = settings_from_environment();
  CHECK(settings.limit_bytes == 1ull << 30);
  CHECK(settings.backend == Choice::kNative);
  unsetenv("ROTA_GPU_MEM_LIMIT");
  unsetenv("ROTA_MEMORY");
}
