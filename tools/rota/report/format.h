// Numbers and names as reports show them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rota::report {

// "512 B", "1.5 GiB"
std::string bytes_text(std::uint64_t bytes);
// "0", "12 us", "1.23 s", "2 min 3 s"
std::string duration_text(std::uint64_t nanoseconds);

// "no findings", "1 finding", "2 findings"
std::string count_text(std::size_t count, std::string_view one, std::string_view many);

// Valid UTF-8 on one line: every byte that is not part of a character, and every control character, is written "\x07".
std::string printable(std::string_view text);
// The same for the beginning of a text: if it has more than `most` bytes, as many whole words as fit, and "...".
std::string printable_beginning(std::string_view text, std::size_t most);

// The last part of a path.
std::string_view file_name(std::string_view path);

}  // namespace rota::report
