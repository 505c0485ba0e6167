// What the log says of decisions about single programs.
#include <bit>
#include <chrono>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "scheduler/base/byte_text.h"
#include "scheduler/server/log.h"
#include "scheduler/server/server.h"

namespace rota::server {

// The first time, the second, the fourth and so on.
void Server::report_revoked(Client& client, const scheduler::Decision& decision) const {
  if (const Task* const task = client.tasks.with_id(decision.client); task != nullptr && is_to_join(client, *task)) {
    log::info("client {} ({}, pid {}): its work waits for others of its gang, which therefore begins beside it",
              client.id, client.name, client.pid);
    return;
  }
  if (!std::has_single_bit(++client.revocations)) return;
  log::warn(
      "client {} ({}, pid {}) did not give its GPU back within {} ms of the end of its turn{}: others run at the same "
      "time",
      client.id, client.name, client.pid,
      std::chrono::duration_cast<std::chrono::milliseconds>(core_.settings().grace).count(),
      client.revocations == 1 ? "" : fmt::format(", {} times so far", client.revocations));
}

// Once for each client: while its memory does not fit, that is decided anew every ten seconds.
void Server::report_passed_over(Client& client, const scheduler::Decision& decision) const {
  using rota::bytes_text;
  if (decision.bytes == 0) return log::debug("client {}: is no longer passed over", client.id);
  if (std::exchange(client.was_passed_over, true)) return;
  std::string others;
  for (const auto& [id, other] : clients_) {
    const scheduler::Bytes fixed = core_.use(other->tasks.id_on(decision.gpu), decision.gpu, modelled_now()).fixed;
    if (id == client.id || fixed == 0) continue;
    others += fmt::format(", pid {} ({}) has {} of that", other->pid, other->name, bytes_text(fixed));
  }
  if (const scheduler::Bytes outside = core_.gpu(decision.gpu).outside; outside != 0) {
    others += fmt::format(", programs without rota have {}", bytes_text(outside));
  }
  log::warn(
      "client {} ({}, pid {}) is passed over on GPU {} while others can use it: {} of its memory do not fit beside "
      "{}{}",
      client.id, client.name, client.pid, gpus_.number(decision.gpu), bytes_text(decision.bytes),
      in_the_way_text(decision.bytes, core_.use(decision.client, decision.gpu, modelled_now()).lacks_for_now), others);
}

}  // namespace rota::server
