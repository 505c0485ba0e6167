#include "runtime/memory/settings.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <utility>

using namespace rota::memory;

TEST_CASE("a limit that cannot be read allows nothing, and other bad values are what they are without") {
  for (const char* text : {"lots", "0", "-1", "8 G"}) {
    INFO(text);
    setenv("ROTA_GPU_MEM_LIMIT", text, 1);
    CHECK(settings_from_environment().limit_bytes == 0);
  }
  setenv("ROTA_GPU_MEM_LIMIT", "", 1);
  setenv("ROTA_MEMORY", "magic", 1);
  Settings settings = settings_from_environment();
  CHECK(settings.limit_bytes == kNoLimit);
  CHECK(settings.backend == Choice::kAuto);
  setenv("ROTA_GPU_MEM_LIMIT", "1G", 1);
  setenv("ROTA_MEMORY", "native", 1);
  settings = settings_from_environment();
  CHECK(settings.limit_bytes == 1ull << 30);
  CHECK(settings.backend == Choice::kNative);
  CHECK(settings.small_bytes == 64 << 10);
  setenv("ROTA_MEMORY", "auto", 1);
  CHECK(settings_from_environment().backend == Choice::kAuto);
  for (const auto& [text, bytes] : {std::pair{"0", 0}, {"4K", 4096}, {"few", 64 << 10}}) {
    setenv("ROTA_MEMORY_SMALL", text, 1);
    CHECK(settings_from_environment().small_bytes == static_cast<std::uint64_t>(bytes));
  }
  CHECK_FALSE(settings.oversubscribe);
  for (const auto& [text, allowed] : {std::pair{"1", true}, {"0", false}, {"yes", false}}) {
    setenv("ROTA_OVERSUBSCRIBE", text, 1);
    CHECK(settings_from_environment().oversubscribe == allowed);
  }
  unsetenv("ROTA_OVERSUBSCRIBE");
  unsetenv("ROTA_GPU_MEM_LIMIT");
  unsetenv("ROTA_MEMORY_SMALL");
  unsetenv("ROTA_MEMORY");
}
