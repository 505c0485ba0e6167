// ROTA_OFF=1 makes the preloads pass everything through, whatever else is set.
#pragma once

#include <stdlib.h>
#include <string.h>

namespace rota::thin {

// Any text except an empty one and 0: a user who meant to switch rota off must not get it.
inline bool is_off() noexcept {
  const char* const value = secure_getenv("ROTA_OFF");
  return value != nullptr && *value != '\0' && strcmp(value, "0") != 0;
}

}  // namespace rota::thin
