// Text that others have chosen, on its way to a terminal or a log: names of processes, users, sessions and GPUs,
// command lines, a peer's reason for a refusal. Letters of any language stay; what a terminal takes for a command, or
// what hides or reorders the text around it, becomes '?': control characters (also those above 0x7f, as U+009B, which
// begins a command where ESC [ does), bytes that are not UTF-8, separators of lines, and marks that change the
// direction or have no width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rota {

// Examines the character, or invalid byte, with which the text begins: `bytes` is its length. Returns 0 if it must not
// be shown, otherwise its length again.
inline std::size_t printable_length(std::string_view text, std::size_t& bytes) {
  bytes = 1;
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= ' ' && first != 0x7f ? 1 : 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  std::uint32_t letter = first & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    letter = letter << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = letter >= 0xd800 && letter < 0xe000;
  if (letter < kLeast[length] || letter > 0x10ffff || surrogate) return 0;
  bytes = length;
  const auto among = [&](std::uint32_t from, std::uint32_t to) { return letter >= from && letter <= to; };
  const bool hidden = among(0x80, 0x9f) || letter == 0xad || letter == 0x61c || letter == 0x180e ||
                      among(0x200b, 0x200f) || among(0x2028, 0x202e) || among(0x2060, 0x206f) || letter == 0xfeff ||
                      among(0xfff9, 0xfffb) || among(0xe0000, 0xe0fff) || (letter & 0xfffe) == 0xfffe;
  return hidden ? 0 : length;
}

// In place, since the result is never longer: returns its length.
inline std::size_t make_printable(char* text, std::size_t length) {
  std::size_t to = 0;
  for (std::size_t from = 0; from < length;) {
    std::size_t bytes = 0;
    if (printable_length({text + from, length - from}, bytes) != 0) {
      for (std::size_t i = 0; i < bytes; ++i) text[to + i] = text[from + i];
      to += bytes;
    } else {
      text[to++] = '?';
    }
    from += bytes;
  }
  return to;
}

inline std::string printable(std::string_view text) {
  std::string result(text);
  result.resize(make_printable(result.data(), result.size()));
  return result;
}

// A field of a message: ends within it, and what follows is zero.
template <std::size_t kSize>
void make_printable(char (&field)[kSize]) {
  std::size_t length = 0;
  while (length < kSize - 1 && field[length] != '\0') ++length;
  for (std::size_t i = make_printable(field, length); i < kSize; ++i) field[i] = '\0';
}

}  // namespace rota
