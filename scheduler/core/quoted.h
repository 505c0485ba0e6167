// Quotes text that other programs or users have chosen, for a message.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace rota::scheduler {

// In quotes, with unprintable characters shown as '?' and long text truncated.
inline std::string quoted(std::string_view text) {
  constexpr std::size_t kMost = 40;
  std::string result(text.substr(0, kMost));
  std::replace_if(result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return "'" + result + (text.size() > kMost ? "...'" : "'");
}

}  // namespace rota::scheduler
