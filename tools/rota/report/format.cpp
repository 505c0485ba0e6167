// See format.h.
#include "tools/rota/report/format.h"

#include <fmt/format.h>

#include "scheduler/base/printable.h"

namespace rota::report {

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
    std::size_t bytes = 0;
    const bool shown = printable_length(text, bytes) != 0;
    for (const char byte : text.substr(0, bytes)) {
      safe += shown ? std::string(1, byte) : fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    text.remove_prefix(bytes);
  }
  return safe;
}

std::string printable_beginning(std::string_view text, std::size_t most) {
  if (text.size() <= most) return printable(text);
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // within a letter
  // A word that is half of all is cut.
  if (const std::size_t blank = text.rfind(' ', end); blank != text.npos && blank >= most / 2) end = blank + 1;
  return printable(text.substr(0, end)) + "...";
}

std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace rota::report
