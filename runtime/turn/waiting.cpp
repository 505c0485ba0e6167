#include "runtime/turn/waiting.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "runtime/core/log.h"
#include "scheduler/protocol/descriptor.h"
#include "scheduler/protocol/socket_path.h"

namespace rota::turn {

namespace {

using protocol::Kind;
using protocol::Message;

constexpr std::chrono::seconds kLines[] = {std::chrono::seconds(1), std::chrono::seconds(10), std::chrono::seconds(60)};

// Reads only /etc/passwd: the C library would load modules for other sources into somebody else's program.
std::string user_name(std::uint32_t uid) {
  const Descriptor file(::open("/etc/passwd", O_RDONLY | O_CLOEXEC));
  std::string text(1 << 16, '\0');
  const ssize_t length = file ? ::read(file.get(), text.data(), text.size()) : 0;
  std::string_view rest(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  const std::string wanted = std::to_string(uid);
  while (!rest.empty()) {  // name:password:uid:…
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::size_t name = line.find(':');
    const std::size_t password = name == std::string_view::npos ? name : line.find(':', name + 1);
    if (password == std::string_view::npos) continue;
    const std::string_view number = line.substr(password + 1, line.find(':', password + 1) - password - 1);
    if (number == wanted) return std::string(line.substr(0, name));
  }
  return "uid " + wanted;
}

std::string name_of(const protocol::StatusClient& client, bool pids_agree) {
  if (client.uid == protocol::kHiddenUser) return client.name;
  const std::string name = fmt::format("({}, {})", client.name, user_name(client.uid));
  return pids_agree ? fmt::format("pid {} {}", client.pid, name) : "another program " + name;
}

std::vector<protocol::StatusClient> all_clients() {
  std::vector<protocol::StatusClient> clients;
  const Descriptor rotad(protocol::find_rotad().descriptor);
  if (!rotad) return clients;
  const timeval patience{.tv_sec = 0, .tv_usec = 500'000};
  setsockopt(rotad.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  Message request{.kind = Kind::kStatus};
  request.body.status_request.newest_version = protocol::kVersion;
  if (::send(rotad.get(), &request, sizeof request, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof request))
    return clients;
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < until) {
    Message row;
    const ssize_t length = ::recv(rotad.get(), &row, sizeof row, 0);
    if (length < 0 && errno == EINTR) continue;
    if (length < static_cast<ssize_t>(protocol::kHeaderBytes) || row.magic != protocol::kMagic) break;
    if (row.kind == Kind::kStatusEnd || row.kind == Kind::kRefused) break;
    if (row.kind != Kind::kStatusClient) continue;
    row.body.status_client.name[protocol::kNameLength - 1] = '\0';
    clients.push_back(row.body.status_client);
  }
  return clients;
}

}  // namespace

std::optional<std::chrono::nanoseconds> Waiting::stands(std::chrono::nanoseconds so_long) {
  if (!log::enabled(log::Level::kWarn)) return std::nullopt;
  std::size_t said = said_.load(std::memory_order_relaxed);
  if (said < std::size(kLines) && so_long >= kLines[said] && said_.compare_exchange_strong(said, said + 1)) {
    const std::string whom = for_whom_();
    if (said == 0) {
      log::warn("waiting for {}; `rota status` says more", whom);
    } else {
      log::warn("waiting for {}, for {} s now; `rota status` says more", whom, kLines[said].count());
    }
    ++said;
  }
  return said < std::size(kLines) ? std::optional<std::chrono::nanoseconds>(kLines[said]) : std::nullopt;
}

std::string who_holds() {
  return holder_of(all_clients(), getpid());
}

std::string holder_of(const std::vector<protocol::StatusClient>& clients, std::int32_t own_pid) {
  if (clients.empty()) return "its turn on a GPU; no rotad says who holds it";
  const bool known = std::any_of(clients.begin(), clients.end(),
                                 [&](const auto& client) { return client.pid == own_pid && client.wanted_gpus != 0; });
  std::uint64_t wanted = 0;
  for (const auto& client : clients) {
    if (!known || client.pid == own_pid) wanted |= client.wanted_gpus;
  }
  if (!known && !std::has_single_bit(wanted)) return "its turn on a GPU";
  for (std::uint32_t gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    if ((wanted >> gpu & 1) == 0) continue;
    std::string first;
    std::size_t others = 0;
    for (const auto& client : clients) {
      if ((known && client.pid == own_pid) || (client.held_gpus >> gpu & 1) == 0) continue;
      if (first.empty()) {
        first = name_of(client, known);
      } else {
        ++others;
      }
    }
    if (first.empty()) continue;
    return fmt::format("GPU {}, held by {}{}", gpu, first,
                       others == 0 ? "" : fmt::format(" and {} other program{}", others, others == 1 ? "" : "s"));
  }
  return "its turn on a GPU, which is about to become free";
}

}  // namespace rota::turn
