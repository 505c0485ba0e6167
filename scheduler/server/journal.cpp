#include "scheduler/server/journal.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rota::server {
namespace {

// A value with a newline follows its length, 64 bits in little endian.
void add_field(std::string& entry, std::string_view name, std::string_view value) {
  entry += name;
  if (value.find('\n') == std::string_view::npos) {
    entry += '=';
  } else {
    entry += '\n';
    for (int shift = 0; shift < 64; shift += 8) {
      entry += static_cast<char>(static_cast<std::uint64_t>(value.size()) >> shift & 0xff);
    }
  }
  entry += value;
  entry += '\n';
}

}  // namespace

std::string journal_entry(int priority, std::string_view message, const JournalFields& fields) {
  std::string entry;
  add_field(entry, "MESSAGE", message);
  add_field(entry, "PRIORITY", fmt::format("{}", priority));
  add_field(entry, "SYSLOG_IDENTIFIER", "rotad");
  for (const auto& [name, value] : fields) add_field(entry, name, value);
  return entry;
}

std::string journal_socket_of(int stream) {
  constexpr std::string_view kLines = "/stdout";
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (getpeername(stream, reinterpret_cast<sockaddr*>(&address), &length) != 0 || address.sun_family != AF_UNIX ||
      length <= offsetof(sockaddr_un, sun_path)) {
    return {};
  }
  const std::size_t most = length - offsetof(sockaddr_un, sun_path);
  const std::string path(address.sun_path, strnlen(address.sun_path, most));
  return path.ends_with(kLines) ? path.substr(0, path.size() - kLines.size()) + "/socket" : "";
}

bool Journal::send(const std::string& entry) {
  if (!socket_) socket_ = Descriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!socket_ || path_.size() >= sizeof address.sun_path) return false;
  memcpy(address.sun_path, path_.data(), path_.size());
  const ssize_t sent = sendto(socket_.get(), entry.data(), entry.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&address), sizeof address);
  return sent == static_cast<ssize_t>(entry.size());
}

}  // namespace rota::server
