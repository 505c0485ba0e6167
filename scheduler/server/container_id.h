// The container that a cgroup is of.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace rota::server {

// The beginning of its id, as `docker ps` and `podman ps` show it; empty: no container's cgroup. Docker, Podman,
// containerd and CRI-O have the id's 64 hexadecimal digits in the path, as in /system.slice/docker-4f6a….scope.
inline std::string container_in(std::string_view path) {
  constexpr std::size_t kDigits = 64;
  constexpr std::size_t kShown = 12;
  const auto is_digit = [](char letter) {
    return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'f');
  };
  // The innermost.
  for (std::size_t end = path.size(); end >= kDigits;) {
    const std::string_view before = path.substr(0, end);
    const auto last = std::ranges::find_if(before.rbegin(), before.rend(), is_digit);
    end = static_cast<std::size_t>(before.rend() - last);
    std::size_t begin = end;
    while (begin != 0 && is_digit(path[begin - 1])) --begin;
    if (end - begin == kDigits) return std::string(path.substr(begin, kShown));
    end = begin;
  }
  return {};
}

}  // namespace rota::server
