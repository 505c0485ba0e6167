// What `rota run --gang` takes and passes on in ROTA_GANG: NAME[:SIZE].
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "scheduler/base/printable.h"
#include "scheduler/protocol/protocol.h"

namespace rota::client {

inline constexpr std::size_t kGangNameBytes = 31;
static_assert(kGangNameBytes < protocol::kNameLength);

// For messages: the correct form.
inline constexpr const char* kGangForm =
    "use NAME or NAME:SIZE, with a name of 1 to 31 printable characters and no colon and a size from 1 to 256, as in "
    "train:4";

// Nothing if the text is not of that form. Without a size, `size` is 0, and nobody waits for the others.
inline std::optional<protocol::Gang> named_gang(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(':'));
  if (name.empty() || name.size() > kGangNameBytes || printable(name) != name) return std::nullopt;
  protocol::Gang gang{};
  gang.why = protocol::GangWhy::kNamed;
  name.copy(gang.name, name.size());
  if (name.size() == text.size()) return gang;
  const std::string_view size = text.substr(name.size() + 1);
  const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), gang.size);
  if (error != std::errc() || end != size.data() + size.size() || gang.size == 0 || gang.size > protocol::kMostInGang) {
    return std::nullopt;
  }
  return gang;
}

}  // namespace rota::client
