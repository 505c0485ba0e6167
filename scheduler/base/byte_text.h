// Amounts of memory, and what is in their way, as messages show them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace rota {

// "1.5 TiB", "3.0 GiB", "512 MiB", "64 KiB", "100 bytes"; at most ten characters up to 9999 TiB.
inline std::string bytes_text(std::uint64_t bytes) {
  constexpr std::uint64_t kKiB = 1024;
  constexpr std::uint64_t kMiB = 1024 * kKiB;
  constexpr std::uint64_t kGiB = 1024 * kMiB;
  constexpr std::uint64_t kTiB = 1024 * kGiB;
  const auto in = [bytes](std::uint64_t unit) { return static_cast<double>(bytes) / static_cast<double>(unit); };
  if (bytes >= kTiB) return fmt::format("{:.1f} TiB", in(kTiB));
  if (bytes >= kGiB) return fmt::format("{:.1f} GiB", in(kGiB));
  if (bytes >= kMiB) return fmt::format("{:.0f} MiB", in(kMiB));
  return bytes >= kKiB ? fmt::format("{:.0f} KiB", in(kKiB)) : fmt::format("{} bytes", bytes);
}

// What is in the way of memory that does not fit: `for_now` of the `lacking` bytes would fit without others' memory
// that is only pinned temporarily.
inline std::string in_the_way_text(std::uint64_t lacking, std::uint64_t for_now) {
  constexpr const char* kForNow = "what cannot be evicted while work of its programs may run";
  if (for_now == 0) return "what cannot be evicted";
  if (for_now >= lacking) return kForNow;
  return fmt::format("what cannot be evicted and, for {} of that, {}", bytes_text(for_now), kForNow);
}

}  // namespace rota
