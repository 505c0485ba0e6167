// The words of variables and command lines: durations, sizes, modes.
#include <cstring>

#include "scheduler/base/byte_size.h"
#include "scheduler/core/settings.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto bytes = rota::parse_bytes(text)) CHECK(*bytes >= 1 && *bytes <= 9'000'000'000'000'000'000U);
  if (const auto duration = rota::scheduler::parse_duration(text)) {
    CHECK(duration->count() >= 1 && *duration <= std::chrono::hours(24));
  }
  if (const auto mode = rota::scheduler::parse_mode(text)) CHECK(text == rota::scheduler::mode_name(*mode));
  return 0;
}
