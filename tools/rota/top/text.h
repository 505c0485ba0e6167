// Text that fits a terminal's columns.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rota::top {

// What a terminal can show. The widths of characters come from the C library and depend on the locale: for a UTF-8
// terminal, call setlocale(LC_CTYPE) first.
struct Screen {
  int rows = 24;
  int columns = 80;
  bool utf8 = true;  // false: characters beyond ASCII are shown as '?'
};

enum class Side { kLeft, kRight };

// The text in exactly `columns` columns: cut off at the end, or aligned to `side` with spaces. Whatever a terminal may
// take for a command becomes a '?' (base/printable.h). A wide character that would be cut in half is left out.
std::string fitted(std::string_view text, int columns, const Screen& screen, Side side = Side::kLeft);
// How many columns the text takes.
int columns_of(std::string_view text, const Screen& screen);

// At most six columns: "0", "640K", "12.5M", "139.8G", "1010M".
std::string short_size(std::uint64_t bytes);
// At most six columns: "0.4s", "12.3s", "4:07", "2h05", "31d".
std::string short_time(std::uint64_t nanoseconds);
// A bar such as "[||||    45%]" in `columns` columns, or in eight if `columns` is less. `part` is from 0 to 1.
std::string meter(double part, const std::string& label, int columns);

}  // namespace rota::top
