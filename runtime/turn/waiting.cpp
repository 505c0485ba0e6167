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
#include "scheduler/protocol/byte_text.h"
#include "scheduler/protocol/descriptor.h"
#include "scheduler/protocol/socket_path.h"
#include "scheduler/protocol/unresponsive.h"

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

struct Rows {
  std::vector<protocol::StatusGpu> gpus;
  std::vector<protocol::StatusClient> clients;
  std::vector<protocol::StatusUse> uses;
  std::string silent;  // what is wrong with a rotad that does not answer
};

Rows all_rows(std::chrono::milliseconds patience = std::chrono::milliseconds(500)) {
  Rows rows;
  std::vector<protocol::StatusClient>& clients = rows.clients;
  const protocol::SocketSearch search = protocol::find_rotad();
  const Descriptor rotad(search.descriptor);
  if (!rotad) return rows;
  const timeval timeout{.tv_sec = 0, .tv_usec = std::chrono::microseconds(patience).count()};
  setsockopt(rotad.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  Message request{.kind = Kind::kStatus};
  request.body.status_request.newest_version = protocol::kVersion;
  if (::send(rotad.get(), &request, sizeof request, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof request)) return rows;
  const auto until = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < until) {
    Message row;
    const ssize_t length = ::recv(rotad.get(), &row, sizeof row, 0);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && errno == EAGAIN) {
      rows.silent = protocol::unresponsive_text(search.candidate.path, protocol::listener_of(rotad.get()));
    }
    if (length < static_cast<ssize_t>(protocol::kHeaderBytes) || row.magic != protocol::kMagic) break;
    if (row.kind == Kind::kStatusEnd || row.kind == Kind::kRefused) break;
    if (row.kind == Kind::kStatusGpu) rows.gpus.push_back(row.body.status_gpu);
    if (row.kind == Kind::kStatusUse) rows.uses.push_back(row.body.status_use);
    if (row.kind != Kind::kStatusClient) continue;
    row.body.status_client.name[protocol::kNameLength - 1] = '\0';
    clients.push_back(row.body.status_client);
  }
  return rows;
}

// The three of the others that have most, and how many more have any.
template <typename BytesOf>
std::string most_of(const std::vector<protocol::StatusClient>& clients, std::int32_t own_pid, BytesOf bytes) {
  constexpr std::size_t kNamed = 3;
  const bool known = std::ranges::any_of(clients, [&](const auto& client) { return client.pid == own_pid; });
  std::vector<protocol::StatusClient> others;
  for (const auto& client : clients) {
    const bool own = known && client.pid == own_pid;
    if (!own && bytes(client) != 0) others.push_back(client);
  }
  std::ranges::stable_sort(others, std::ranges::greater(), bytes);
  std::string text;
  for (std::size_t i = 0; i < std::min(others.size(), kNamed); ++i) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(others[i], known),
                        protocol::bytes_text(bytes(others[i])));
  }
  if (others.size() > kNamed) text += fmt::format(" and {} more", others.size() - kNamed);
  return text;
}

}  // namespace

std::optional<std::chrono::nanoseconds> Waiting::stands(std::chrono::nanoseconds so_long) {
  if (!log::enabled(log::Level::kWarn)) return std::nullopt;
  std::size_t said = said_.load(std::memory_order_relaxed);
  if (said < std::size(kLines) && so_long >= kLines[said] && said_.compare_exchange_strong(said, said + 1)) {
    const std::string whom = for_whom_();
    if (said == 0) {
      log::warn("waiting for {}{}", whom, more_);
    } else {
      log::warn("waiting for {}, for {} s now{}", whom, kLines[said].count(), more_);
    }
    ++said;
  }
  return said < std::size(kLines) ? std::optional<std::chrono::nanoseconds>(kLines[said]) : std::nullopt;
}

std::string who_holds() {
  const Rows rows = all_rows();
  if (!rows.silent.empty()) return "its turn on a GPU: " + rows.silent;
  const std::string room = room_for(rows.clients, rows.uses, getpid());
  return room.empty() ? holder_of(rows.clients, getpid()) : room;
}

std::string who_has_memory(int gpu) {
  return memory_of(all_rows().clients, gpu, getpid());
}

std::string who_stays_for_now(int gpu) {
  const Rows rows = all_rows();
  return staying_of(rows.clients, rows.uses, gpu, getpid(), &protocol::StatusUse::fixed_for_now_bytes);
}

std::optional<std::uint64_t> taken_for_good(const protocol::Uuid& uuid) {
  const Rows rows = all_rows(std::chrono::milliseconds(250));
  const auto gpu = std::ranges::find_if(rows.gpus, [&](const protocol::StatusGpu& each) { return each.uuid == uuid; });
  if (gpu == rows.gpus.end() || gpu->clients == 0) return std::nullopt;
  std::uint64_t bytes = gpu->outside_bytes;
  for (const protocol::StatusClient& client : rows.clients) {
    // Its contexts on all of its GPUs, which are about alike.
    if ((client.gpus >> gpu->index & 1) != 0) bytes += client.context_bytes / std::popcount(client.gpus);
  }
  for (const protocol::StatusUse& use : rows.uses) {
    if (use.gpu == gpu->index) bytes += use.fixed_bytes - std::min(use.fixed_bytes, use.fixed_for_now_bytes);
  }
  return bytes;
}

std::string memory_of(const std::vector<protocol::StatusClient>& clients, int gpu, std::int32_t own_pid) {
  return most_of(clients, own_pid, [gpu](const protocol::StatusClient& client) {
    const bool there = gpu >= 0 && (client.gpus >> gpu & 1) != 0;
    return there ? client.device_bytes + client.context_bytes : 0;
  });
}

std::string staying_of(const std::vector<protocol::StatusClient>& clients, const std::vector<protocol::StatusUse>& uses,
                       int gpu, std::int32_t own_pid, std::uint64_t protocol::StatusUse::* bytes) {
  return most_of(clients, own_pid, [&](const protocol::StatusClient& client) {
    const auto here = [&](const protocol::StatusUse& use) {
      return use.client == client.client && gpu >= 0 && use.gpu == static_cast<std::uint32_t>(gpu);
    };
    const auto use = std::ranges::find_if(uses, here);
    return use != uses.end() ? (*use).*bytes : 0;
  });
}

std::string room_for(const std::vector<protocol::StatusClient>& clients, const std::vector<protocol::StatusUse>& uses,
                     std::int32_t own_pid) {
  for (const protocol::StatusClient& client : clients) {
    if (client.pid != own_pid) continue;
    for (const protocol::StatusUse& use : uses) {
      if (use.client != client.client || use.lacks_bytes == 0) continue;
      const std::string others =
          staying_of(clients, uses, static_cast<int>(use.gpu), own_pid, &protocol::StatusUse::fixed_bytes);
      return fmt::format("room on GPU {}: {} of this program's memory do not fit beside {}{}{}", use.gpu,
                         protocol::bytes_text(use.lacks_bytes),
                         protocol::in_the_way_text(use.lacks_bytes, use.lacks_for_now_bytes),
                         others.empty() ? "" : ": ", others);
    }
  }
  return "";
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
