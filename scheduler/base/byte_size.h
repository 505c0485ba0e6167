// Parses sizes as users write them, the same in every variable and option of rota.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace rota {

// "512M", "2G", "1.5g", "2GiB", "2gb" (powers of 1024), "123" bytes; rounded down to whole bytes. Nothing for anything
// else, for less than one byte, and from 9e18 on.
inline std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (!suffix.empty()) {
    constexpr std::string_view kSuffixes = "KMGTkmgt";
    const auto found = kSuffixes.find(suffix.front());
    if (found == std::string_view::npos) return std::nullopt;
    number *= static_cast<double>(std::uint64_t{1} << (10 * (found % 4 + 1)));
    suffix.remove_prefix(1);
    if (suffix.starts_with('i') || suffix.starts_with('I')) {
      suffix.remove_prefix(1);
      if (suffix.empty()) return std::nullopt;
    }
    if (!suffix.empty() && suffix != "B" && suffix != "b") return std::nullopt;
  }
  if (!(number >= 1) || number >= 9e18) return std::nullopt;
  return static_cast<std::uint64_t>(number);
}

// Whether this is a number without a unit that is surely not meant as bytes: "8" means 8 GiB, or 8 MiB.
inline bool lacks_unit(std::string_view text) {
  const auto bytes = parse_bytes(text);
  return bytes && *bytes < std::uint64_t{1} << 20 && text.find_first_not_of("0123456789.") == std::string_view::npos;
}

}  // namespace rota
