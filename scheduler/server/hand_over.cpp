// Memory on its way from a client that makes room to one that lacks memory. Its descriptor is passed on at once or
// closed.
#include <poll.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include "scheduler/server/client.h"
#include "scheduler/server/log.h"
#include "scheduler/server/server.h"

namespace rota::server {

using protocol::Message;

namespace {

// A namespace of a process, as a unique text; empty if it cannot be determined.
std::string name_of_namespace(pid_t pid, const char* kind) {
  struct stat file{};
  if (stat(fmt::format("/proc/{}/ns/{}", pid, kind).c_str(), &file) != 0) return {};
  return fmt::format("{}:{}", file.st_dev, file.st_ino);
}

bool is_alive(const Descriptor& process) {
  pollfd ended{process.get(), POLLIN, 0};
  return process && poll(&ended, 1, 0) == 0;
}

}  // namespace

// According to the kernel, never to the process itself.
std::optional<std::string> Server::domain_of(const Connection& connection) const {
  const Peer& peer = connection.peer();
  if (options_.trust == Trust::kNone) return std::nullopt;
  if (options_.trust == Trust::kMachine) return std::string();
  if (peer.pid == 0) return std::nullopt;
  const std::string user = name_of_namespace(peer.pid, "user");
  const std::string pid = name_of_namespace(peer.pid, "pid");
  // Its pid can belong to another process only if it is dead.
  if (user.empty() || pid.empty() || !is_alive(peer.process)) return std::nullopt;
  return fmt::format("{} {} {}", peer.uid, user, pid);
}

// A client that lacks memory on this GPU, holds the GPU, and trusts the giver; null: none.
const Server::Client* Server::taker_of(const Client& giver, std::uint32_t gpu) const {
  if (!giver.domain) return nullptr;
  const Client* most = nullptr;
  scheduler::Bytes lacking = 0;
  for (const auto& [id, client] : clients_) {
    if (client.get() == &giver || client->connection == 0 || client->domain != giver.domain) continue;
    const scheduler::Bytes bytes = core_.lacking_bytes(id, gpu);
    if (bytes <= lacking) continue;
    most = client.get();
    lacking = bytes;
  }
  return most;
}

std::uint64_t Server::hand_over_gpus(const Client& client) const {
  std::uint64_t gpus = 0;
  for (const std::uint32_t gpu : client.gpus) {
    const bool clears = !(core_.client(client.id)->held >> gpu & 1) && core_.bytes_to_clear(client.id, gpu) != 0;
    if (clears && taker_of(client, gpu) != nullptr) gpus |= std::uint64_t{1} << gpu;
  }
  return gpus;
}

// For all clients what publish() says to those that change: whether anybody lacks memory may change while what a client
// is asked to clear does not. Wakes nobody: a client looks with each piece that leaves.
void Server::publish_takers() {
  if (core_.clearing_gpus() == 0) return;
  for (const auto& [id, client] : clients_) client->lease->hand_over_gpus = hand_over_gpus(*client);
}

void Server::on_hand_over(const Client& client, const protocol::Extent& extent, const Descriptor& memory) {
  if (!memory || extent.gpu >= protocol::kMaxGpus || client.gpus.count(extent.gpu) == 0) return;
  const Client* taker = taker_of(client, extent.gpu);
  if (taker == nullptr) return;
  const auto connection = connections_.find(taker->connection);
  if (connection == connections_.end()) return;
  Message message{.kind = protocol::Kind::kExtent};
  message.body.extent = {.gpu = extent.gpu, .padding = 0, .bytes = extent.bytes};
  if (!connection->second->send_with(message, {memory.get()})) return;
  handed_over_[extent.gpu] += extent.bytes;
  clients_.at(taker->id)->took_over.insert(extent.gpu);
  log::debug("client {}: hands {} bytes of GPU {} to client {}", client.id, extent.bytes, extent.gpu, taker->id);
}

void Server::on_strange_descriptor(Connection& connection) {
  const uid_t user = connection.peer().uid;
  if (!no_descriptors_from_.insert(user).second) return;
  log::warn(
      "pid {} (user {}) sent a descriptor of something other than GPU memory: no more are accepted from this user",
      connection.peer().pid, user);
  for (const auto& [number, other] : connections_) {
    if (other->peer().uid == user) other->takes_descriptors = false;
  }
}

}  // namespace rota::server
