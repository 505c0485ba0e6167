// See format.h.
#include "tools/rota/report/format.h"

#include <fmt/format.h>

namespace rota::report {
namespace {

// Bytes of the character at the front; 0 if there is none. Overlong forms, surrogates and what lies beyond Unicode are
// none, and neither are the two that XML cannot hold.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first < 0x20 || first == 0x7f ? 0 : 1;
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
  }
  if (first == 0xc2 && byte(1) < 0xa0) return 0;  // control characters
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) >= 0xa0)) return 0;
  if (first == 0xef && byte(1) == 0xbf && byte(2) >= 0xbe) return 0;
  if ((first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) >= 0x90)) return 0;
  return bytes;
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  constexpr double kStep = 1024;
  auto number = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; number >= kStep && unit + 1 < std::size(kUnits); ++unit) number /= kStep;
  if (unit == 0) return fmt::format("{} B", bytes);
  return number < 10 ? fmt::format("{:.1f} {}", number, kUnits[unit]) : fmt::format("{:.0f} {}", number, kUnits[unit]);
}

std::string duration_text(std::uint64_t nanoseconds) {
  if (nanoseconds == 0) return "0";
  const auto number = static_cast<double>(nanoseconds);
  const auto three_digits = [](double value, const char* unit) {
    const int digits = value < 10 ? 2 : value < 100 ? 1 : 0;
    return fmt::format("{:.{}f} {}", value, digits, unit);
  };
  if (number < 1e3) return fmt::format("{} ns", nanoseconds);
  if (number < 1e6) return three_digits(number / 1e3, "us");
  if (number < 1e9) return three_digits(number / 1e6, "ms");
  if (number < 120e9) return three_digits(number / 1e9, "s");
  const std::uint64_t seconds = nanoseconds / 1'000'000'000;
  if (seconds < 7200) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
}

std::string count_text(std::size_t count, std::string_view one, std::string_view many) {
  return count == 0 ? fmt::format("no {}", many) : fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string printable(std::string_view text) {
  std::string safe;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    if (bytes == 0) {
      safe += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
      text.remove_prefix(1);
    } else {
      safe += text.substr(0, bytes);
      text.remove_prefix(bytes);
    }
  }
  return safe;
}

std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace rota::report
