// Memory on its way from a client that evicts it to one with a deficit. A worker process passes its descriptor on at
// once or closes it; rotad itself never has it.
#include <fmt/format.h>

#include "scheduler/server/client.h"
#include "scheduler/server/log.h"
#include "scheduler/server/server.h"

namespace rota::server {

using protocol::Message;

// A client that has a deficit on this GPU, holds the GPU, and trusts the donor; null: none.
const Server::Client* Server::recipient_of(const Client& donor, std::uint32_t gpu) const {
  if (!donor.hands_over) return nullptr;
  const Client* most = nullptr;
  scheduler::Bytes deficit = 0;
  core_.for_each_holder(gpu, [&](scheduler::ClientId id) {
    const scheduler::Bytes bytes = core_.lacking_bytes(id, gpu);
    const auto* const client = static_cast<const Client*>(deficit_on(id, gpu));
    if (bytes <= deficit || client == nullptr || client == &donor || client->connection == 0) return;
    if (!client->hands_over || client->domain != donor.domain) return;
    most = client;
    deficit = bytes;
  });
  return most;
}

bool Server::hands_over(const Client& client, std::uint32_t gpu) const {
  const Task* const task = client.tasks.on(gpu);
  const bool evicts =
      task != nullptr && !scheduler::has(state_of(*task).held, gpu) && core_.bytes_to_clear(task->id, gpu) != 0;
  return evicts && recipient_of(client, gpu) != nullptr;
}

// Tells all clients what publish() tells those that change: whether some client has a deficit may change while what a
// client is asked to evict does not. Wakes nobody: a client reads this with each extent that it evicts.
void Server::publish_recipients() {
  if (core_.clearing_gpus() != 0) recipients_pass_.run();
}

void Server::publish_hand_overs() {
  for (const auto& [id, client] : clients_) {
    if (!client->hands_over) continue;
    for (const std::uint32_t gpu : client->gpus()) client->lease->gpus[gpu].hands_over = hands_over(*client, gpu);
  }
}

// A worker takes out whatever comes, even if it is of no use: the sender's next message comes after it.
void Server::on_descriptors(Connection& connection, const Message& message) {
  const auto found = clients_.find(connection.client);
  if (connection.client == 0 || found == clients_.end()) {
    hang_up(connection, "a descriptor came with a message before hello: only programs that use rota may send any");
    return;
  }
  const Client& client = *found->second;
  const std::string& sender = client.domain.payer();
  const protocol::Extent extent = message.body.extent;
  const Client* recipient = nullptr;
  if (message.kind == protocol::Kind::kHandOver && client.gpus().contains(extent.gpu) && !workers_.is_suspect(sender)) {
    recipient = recipient_of(client, extent.gpu);
  }
  Message passed{.kind = protocol::Kind::kExtent};
  passed.body.extent = {.gpu = extent.gpu, .padding = 0, .bytes = extent.bytes};
  const auto to = recipient != nullptr ? connections_.find(recipient->connection) : connections_.end();
  std::weak_ptr<Connection> receiver;
  if (to != connections_.end() && to->second->may_be_sent_to()) {
    receiver = to->second;
    passed.version = to->second->version;
  }
  const scheduler::ClientId recipient_id = recipient != nullptr ? recipient->id : 0;
  connection.lend();
  workers_.take(
      passed, sender,
      [donor = connection.weak_from_this(), receiver](int& from, int& to_socket) {
        const auto reads = donor.lock();
        if (reads == nullptr || reads->socket() < 0) return false;
        from = reads->socket();
        const auto writes = receiver.lock();
        to_socket = writes != nullptr ? writes->socket() : -1;
        return true;
      },
      [this, donor = connection.weak_from_this(), from = client.id, pid = connection.peer().pid, sender, extent,
       recipient_id](JobOutcome outcome) {
        if (stopped_) return;
        if (outcome == JobOutcome::kNoMemory || outcome == JobOutcome::kKilled) {
          log::warn("pid {} (user {}) sent {}: memory is no longer handed over from this user", pid, sender,
                    outcome == JobOutcome::kKilled ? "a descriptor that could not be closed within reasonable time"
                                                   : "a descriptor of something other than GPU memory");
        }
        if (outcome == JobOutcome::kDone && recipient_id != 0) on_passed_on(from, recipient_id, extent);
        if (const auto lender = donor.lock()) lender->take_back();
      });
}

// The donor, and by now even the recipient, may have ended.
void Server::on_passed_on(scheduler::ClientId donor, scheduler::ClientId recipient, const protocol::Extent& extent) {
  handed_over_[extent.gpu] += extent.bytes;
  if (const GpuEntry* const gpu = gpus_.at(extent.gpu)) {
    if (protocol::GpuTotals* const totals = book_.gpu(gpu->uuid)) totals->handed_over_bytes += extent.bytes;
  }
  if (const auto found = clients_.find(recipient); found != clients_.end()) found->second->took_over.insert(extent.gpu);
  log::debug("client {}: hands {} bytes of GPU {} to client {}", donor, extent.bytes, gpus_.number(extent.gpu),
             recipient);
}

}  // namespace rota::server
