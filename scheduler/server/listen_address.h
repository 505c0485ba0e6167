// A numeric address and a port, as "127.0.0.1:9410" or "[::1]:9410".
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <cstring>
#include <optional>
#include <string>

namespace rota::server {

struct ListenAddress {
  sockaddr_storage address{};
  socklen_t length = 0;
  bool loopback = false;  // only programs of this machine reach it
};

// Nothing: it is no such text. Names are not resolved, since their meaning depends on where they are resolved.
inline std::optional<ListenAddress> parse_listen_address(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc{} || rest != end || port == 0) return std::nullopt;
  const std::string host = text.substr(0, colon);
  ListenAddress result;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    if (inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &six.sin6_addr) != 1) return std::nullopt;
    result.loopback = IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
    result.length = sizeof six;
    std::memcpy(&result.address, &six, sizeof six);
  } else {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    if (inet_pton(AF_INET, host.c_str(), &four.sin_addr) != 1) return std::nullopt;
    result.loopback = ntohl(four.sin_addr.s_addr) >> 24 == 127;
    result.length = sizeof four;
    std::memcpy(&result.address, &four, sizeof four);
  }
  return result;
}

}  // namespace rota::server
