#include "runtime/memory/settings.h"

#include <cstdlib>
#include <string_view>

#include "runtime/core/log.h"
#include "scheduler/base/byte_size.h"

namespace rota::memory {

namespace {

// 1 or 0; for other values the default stays.
void read_switch(const char* name, bool& setting) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read once, at attach
  if (value == nullptr || *value == '\0') return;
  if (std::string_view(value) == "1" || std::string_view(value) == "0") {
    setting = *value == '1';
  } else {
    log::warn("{} is '{}': use 1 or 0; {} is used", name, value, setting ? 1 : 0);
  }
}

}  // namespace

Settings settings_from_environment() {
  Settings settings;
  // NOLINTBEGIN(concurrency-mt-unsafe): read once, at attach
  if (const char* value = std::getenv("ROTA_MEMORY"); value != nullptr && *value != '\0') {
    const std::string_view wanted = value;
    if (wanted == "auto") {
      settings.backend = Choice::kAuto;
    } else if (wanted == "managed") {
      settings.backend = Choice::kManaged;
    } else if (wanted == "native") {
      settings.backend = Choice::kNative;
    } else if (wanted == "swap") {
      settings.backend = Choice::kSwap;
    } else {
      log::warn("ROTA_MEMORY is '{}': use auto, managed, native or swap; auto is used", wanted);
    }
  }
  if (const char* value = std::getenv("ROTA_GPU_MEM_LIMIT"); value != nullptr && *value != '\0') {
    if (const auto bytes = parse_bytes(value)) {
      settings.limit_bytes = *bytes;
    } else {
      // A user who sets a limit wants one: without a readable number, every allocation exceeds it.
      settings.limit_bytes = 0;
      log::error(
          "ROTA_GPU_MEM_LIMIT is '{}', which is not a size: every allocation of GPU memory is refused; use bytes with "
          "an optional K, M, G or T, as in 8G, or unset it",
          value);
    }
  }
  if (const char* value = std::getenv("ROTA_MEMORY_SMALL"); value != nullptr && *value != '\0') {
    if (std::string_view(value) == "0") {
      settings.small_bytes = 0;
    } else if (const auto bytes = parse_bytes(value)) {
      settings.small_bytes = *bytes;
    } else {
      log::warn("ROTA_MEMORY_SMALL is '{}': use bytes with an optional K, M, G or T, as in 64K; the default is used",
                value);
    }
  }
  read_switch("ROTA_OVERSUBSCRIBE", settings.oversubscribe);
  read_switch("ROTA_MOVE_OUT", settings.move_out);
  // NOLINTEND(concurrency-mt-unsafe)
  return settings;
}

}  // namespace rota::memory
