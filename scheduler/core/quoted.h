// Words of somebody else's in a message of ours.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace rota::scheduler {

// In quotes; what would do something to a terminal as '?', and what is long cut off.
inline std::string quoted(std::string_view text) {
  constexpr std::size_t kMost = 40;
  std::string result(text.substr(0, kMost));
  std::replace_if(result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return "'" + result + (text.size() > kMost ? "...'" : "'");
}

}  // namespace rota::scheduler
