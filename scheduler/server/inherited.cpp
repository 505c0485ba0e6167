#include "scheduler/server/inherited.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace rota::server {
namespace {

constexpr int kFirst = 3;
constexpr int kMost = 64;  // a judgment

// Takes the variable's value and unsets it; empty: there is none.
std::string take_variable(const char* name) {
  // NOLINTBEGIN(concurrency-mt-unsafe): no other thread yet
  const char* const value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  unsetenv(name);
  // NOLINTEND(concurrency-mt-unsafe)
  return text;
}

// -1: the text is no number.
int number_in(const std::string& text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? number : -1;
}

int option_of(int socket, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  return getsockopt(socket, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

// The path of a socket; empty: it has none, or this is no socket.
std::string path_of(int socket) {
  sockaddr_un address{};
  socklen_t size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0 || address.sun_family != AF_UNIX)
    return {};
  const std::size_t length = size - std::min<std::size_t>(size, offsetof(sockaddr_un, sun_path));
  return std::string(address.sun_path, strnlen(address.sun_path, length));
}

Result<Inherited::Listener> listener_of(int descriptor, std::string_view name) {
  Inherited::Listener listener{Descriptor(descriptor), path_of(descriptor)};
  if (option_of(descriptor, SO_TYPE) != SOCK_SEQPACKET || option_of(descriptor, SO_ACCEPTCONN) != 1 ||
      listener.path.empty()) {
    return Error{
        fmt::format("descriptor {} ({}) is no listening socket of packets with a path: use "
                    "ListenSequentialPacket=/PATH in the socket unit",
                    descriptor, name)};
  }
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0) {
    return Error{fmt::format("cannot use descriptor {} ({}): {}", descriptor, name, strerror(errno))};
  }
  return listener;
}

}  // namespace

Result<Inherited> take_inherited() {
  Inherited all;
  const std::string process = take_variable("LISTEN_PID");
  const std::string count = take_variable("LISTEN_FDS");
  const std::string names = take_variable("LISTEN_FDNAMES");
  // Otherwise they were meant for a process that started this one.
  if (number_in(process) != getpid()) return all;
  const int descriptors = number_in(count);
  if (descriptors < 0 || descriptors > kMost) {
    return Error{fmt::format("LISTEN_FDS is '{}': rotad is given up to {} listeners", count, kMost)};
  }
  std::string_view rest = names;
  for (int i = 0; i < descriptors; ++i) {
    const std::string_view name = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    Inherited::Listener* const place = name == "clients" ? &all.clients : name == "control" ? &all.control : nullptr;
    if (place == nullptr || place->socket) {
      return Error{
          fmt::format("descriptor {} is called '{}': rotad takes one called clients and one called control "
                      "(FileDescriptorName= in the socket units)",
                      kFirst + i, name)};
    }
    auto listener = listener_of(kFirst + i, name);
    if (!listener) return listener.error();
    *place = std::move(*listener);
  }
  return all;
}

}  // namespace rota::server
