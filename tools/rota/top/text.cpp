#include "tools/rota/top/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cwchar>

#include "scheduler/base/printable.h"

namespace rota::top {
namespace {

struct Letter {
  std::string_view bytes;
  int columns = 1;
};

// Removes the first letter of the text, which is not empty.
Letter take_letter(std::string_view& text, const Screen& screen) {
  std::size_t bytes = 0;
  const bool shown = printable_length(text, bytes) != 0;
  const std::string_view letter = text.substr(0, bytes);
  text.remove_prefix(bytes);
  if (!shown) return {"?"};
  if (bytes == 1) return {letter};
  if (!screen.utf8) return {"?"};
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(letter[at]); };
  std::uint32_t code = byte(0) & (0xffU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) code = code << 6 | (byte(i) & 0x3fU);
  const int columns = wcwidth(static_cast<wchar_t>(code));
  return columns < 0 ? Letter{"?"} : Letter{letter, columns};
}

}  // namespace

std::string fitted(std::string_view text, int columns, const Screen& screen, Side side) {
  std::string shown;
  int used = 0;
  while (!text.empty()) {
    const Letter letter = take_letter(text, screen);
    if (used + letter.columns > columns) break;
    shown += letter.bytes;
    used += letter.columns;
  }
  const std::string rest(static_cast<std::size_t>(std::max(0, columns - used)), ' ');
  return side == Side::kLeft ? shown + rest : rest + shown;
}

int columns_of(std::string_view text, const Screen& screen) {
  int used = 0;
  while (!text.empty()) used += take_letter(text, screen).columns;
  return used;
}

std::string short_size(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{}", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* const next : {"K", "M", "G", "T", "P", "E"}) {
    // What would be shown as 1024 is one of the next unit.
    if (value < 1023.5) break;
    value /= 1024;
    unit = next;
  }
  const bool whole = *unit == 'K' || value >= 999.95;
  return whole ? fmt::format("{:.0f}{}", value, unit) : fmt::format("{:.1f}{}", value, unit);
}

std::string short_time(std::uint64_t nanoseconds) {
  const double seconds = static_cast<double>(nanoseconds) / 1e9;
  if (seconds < 99.95) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<std::uint64_t>(seconds);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  if (whole < std::uint64_t{100} * 3600) return fmt::format("{}h{:02}", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d", whole / 86400);
}

std::string meter(double part, const std::string& label, int columns) {
  const int inside = std::max(columns, 8) - 2;
  std::string bar(static_cast<std::size_t>(inside), ' ');
  const int full = std::clamp(static_cast<int>(std::lround(part * inside)), 0, inside);
  std::fill_n(bar.begin(), full, '|');
  const std::string shown = label.substr(0, bar.size());
  bar.replace(bar.size() - shown.size(), shown.size(), shown);
  return "[" + bar + "]";
}

}  // namespace rota::top
