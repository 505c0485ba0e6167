// A GPU's or MIG instance's UUID, and as text: "GPU-6ba7b810-9dad-11d1-80b4-00c04fd430c8", as nvidia-smi writes it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rota {

// As cuDeviceGetUuid_v2 gives it.
struct Uuid {
  std::uint8_t bytes[16];
  friend auto operator<=>(const Uuid&, const Uuid&) = default;
};

inline std::string uuid_text(const Uuid& uuid) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid.bytes[i] >> 4];
    text += kDigits[uuid.bytes[i] & 15];
  }
  return text;
}

// Nothing if it is no such text.
inline std::optional<Uuid> parse_uuid(std::string_view text) {
  Uuid uuid{};
  if (!text.starts_with("GPU-")) return std::nullopt;
  std::size_t digits = 0;
  for (const char letter : text.substr(4)) {
    if (letter == '-') continue;
    const bool digit = letter >= '0' && letter <= '9';
    if ((!digit && (letter < 'a' || letter > 'f')) || digits == 2 * sizeof uuid.bytes) return std::nullopt;
    const unsigned value = digit ? static_cast<unsigned>(letter - '0') : static_cast<unsigned>(letter - 'a') + 10;
    std::uint8_t& byte = uuid.bytes[digits++ / 2];
    byte = static_cast<std::uint8_t>(byte << 4 | value);
  }
  if (digits != 2 * sizeof uuid.bytes) return std::nullopt;
  return uuid;
}

}  // namespace rota
