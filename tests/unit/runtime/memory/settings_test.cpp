#include "runtime/memory/settings.h"

#include <catch2/catch.hpp>
#include <cstdlib>

using namespace rota::memory;

TEST_CASE("sizes are read as people write them") {
  CHECK(parse_bytes("123") == 123);
  CHECK(parse_bytes("4K") == 4096);
  CHECK(parse_bytes("512M") == 512ull << 20);
  CHECK(parse_bytes("8G") == 8ull << 30);
  CHECK(parse_bytes("8g") == 8ull << 30);
  CHECK(parse_bytes("1.5G") == 3ull << 29);
  CHECK(parse_bytes("2GiB") == 2ull << 30);
  CHECK(parse_bytes("1T") == 1ull << 40);
  for (const char* bad : {"", "G", "-1G", "12X", "1Gx", "0", "1e30T", "nan", "inf", " 8G"}) {
    INFO(bad);
    CHECK_FALSE(parse_bytes(bad).has_value());
  }
}

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
