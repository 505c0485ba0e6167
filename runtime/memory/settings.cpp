#include "runtime/memory/settings.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "runtime/core/log.h"

namespace rota::memory {

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (!suffix.empty()) {
    constexpr std::string_view kSuffixes = "KMGT";
    const auto power = kSuffixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(suffix.front()))));
    if (power == std::string_view::npos) return std::nullopt;
    number *= std::pow(1024.0, static_cast<double>(power + 1));
    suffix.remove_prefix(1);
    if (!suffix.empty() && suffix != "B" && suffix != "iB") return std::nullopt;
  }
  if (!(number >= 1) || number >= 9e18) return std::nullopt;
  return static_cast<std::uint64_t>(number);
}

Settings settings_from_environment() {
  Settings settings;
  // NOLINTBEGIN(concurrency-mt-unsafe): read once, at attach
  if (const char* value = std::getenv("ROTA_MEMORY"); value != nullptr && *value != '\0') {
    const std::string_view wanted = value;
    if (wanted == "managed") {
      settings.backend = Choice::kManaged;
    } else if (wanted == "native") {
      settings.backend = Choice::kNative;
    } else if (wanted == "swap") {
      log::warn("ROTA_MEMORY=swap is not built yet; managed memory is used");
      settings.backend = Choice::kManaged;
    } else {
      log::warn("ROTA_MEMORY is '{}': use managed or native; the default is used", wanted);
    }
  }
  if (const char* value = std::getenv("ROTA_GPU_MEM_LIMIT"); value != nullptr && *value != '\0') {
    if (const auto bytes = parse_bytes(value)) {
      settings.limit_bytes = *bytes;
    } else {
      log::warn("ROTA_GPU_MEM_LIMIT is '{}': use bytes with an optional K, M, G or T, as in 8G; no limit is set",
                value);
    }
  }
  // NOLINTEND(concurrency-mt-unsafe)
  return settings;
}

}  // namespace rota::memory
