// Text in columns of a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rota::top {

// What a terminal can show. Widths come from the C library's tables for the locale that is set, so a UTF-8 terminal
// needs setlocale(LC_CTYPE) before.
struct Screen {
  int rows = 24;
  int columns = 80;
  bool utf8 = true;  // false: letters beyond ASCII are shown as '?'
};

enum class Side { kLeft, kRight };

// The text in exactly `columns` columns: cut off, or filled up with spaces on the other side. Whatever a terminal could
// take for a command is a '?' (base/printable.h). A wide letter that would be cut in half is left out.
std::string fitted(std::string_view text, int columns, const Screen& screen, Side side = Side::kLeft);
// How many columns it takes.
int columns_of(std::string_view text, const Screen& screen);

// At most six columns: "0", "640K", "12.5M", "139.8G".
std::string short_size(std::uint64_t bytes);
// At most six columns: "0.4s", "12.3s", "4:07", "2h05", "31d".
std::string short_time(std::uint64_t nanoseconds);
// "[||||    45%]" in that many columns, at least eight. `part` from 0 to 1.
std::string meter(double part, const std::string& label, int columns);

}  // namespace rota::top
