// A GPU's UUID as text: "GPU-6ba7b810-9dad-11d1-80b4-00c04fd430c8", as nvidia-smi writes it. For rotad and the command
// line; the shim does without.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>

#include "scheduler/protocol/protocol.h"

namespace rota::protocol {

inline std::string uuid_text(const Uuid& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid.bytes[i]);
  }
  return text;
}

}  // namespace rota::protocol
