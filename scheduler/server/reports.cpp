// What the log says of decisions about single programs.
#include <chrono>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "scheduler/base/byte_text.h"
#include "scheduler/server/client.h"
#include "scheduler/server/log.h"
#include "scheduler/server/server.h"

namespace rota::server {

namespace {

// For lines about the same client.
std::string left_out_text(unsigned lines) {
  return lines == 0 ? "" : fmt::format(" ({} such lines are left out before this one)", lines);
}

// For `journalctl MESSAGE_ID=…`: made once, of no meaning.
constexpr const char* kRefused = "ddbb610367254d6d9c2ad4d33525c6fb";
constexpr const char* kRevoked = "b7c060b3debc427a8dfbc23781207767";

}  // namespace

JournalFields Server::fields_of(const Client& client, const char* event, const char* message_id, const GpuSet& gpus) {
  JournalFields fields = {{"ROTA_EVENT", event},
                          {"MESSAGE_ID", message_id},
                          {"ROTA_PID", fmt::format("{}", client.pid)},
                          {"ROTA_PROGRAM", client.name},
                          {"ROTA_UID", fmt::format("{}", client.uid)},
                          {"ROTA_USER", user_names_.of(client.uid)}};
  if (std::string session = session_name(client); !session.empty()) fields.emplace_back("ROTA_SESSION", session);
  if (client.series && !client.series->container.empty()) {
    fields.emplace_back("ROTA_CONTAINER", client.series->container);
  }
  for (const std::uint32_t gpu : gpus) {
    fields.emplace_back("ROTA_GPU", fmt::format("{}", gpus_.number(gpu)));
    if (const GpuEntry* const entry = gpus_.at(gpu)) fields.emplace_back("ROTA_GPU_UUID", uuid_text(entry->uuid));
  }
  return fields;
}

std::string Server::who(const Client& client) {
  const std::string session = session_name(client);
  return fmt::format("client {} ({}, pid {}, {}{}{})", client.id, client.name, client.pid, user_names_.of(client.uid),
                     session.empty() ? "" : ", session ", session);
}

void Server::report_revoked(Client& client, const scheduler::Decision& decision) {
  const Task* const task = client.tasks.with_id(decision.client);
  count_revocation(client, task);
  if (task != nullptr && task->withdrawn) {
    log::info("{} has not drained in time to join its gang: others run at the same time", who(client));
    return;
  }
  const auto left_out = client.revocation_lines.next(now());
  if (!left_out) return;
  std::string gpus;
  std::uint64_t bytes = 0;
  for (const std::uint32_t gpu : task != nullptr ? GpuSet(task->gpus) : client.gpus()) {
    gpus += fmt::format("{}{}", gpus.empty() ? "" : ", ", gpus_.number(gpu));
    bytes += client.usage->gpus[gpu].device_bytes.load();
  }
  JournalFields fields = fields_of(client, "revoked", kRevoked, task != nullptr ? GpuSet(task->gpus) : client.gpus());
  fields.emplace_back("ROTA_BYTES", fmt::format("{}", bytes));
  log::with(log::Level::kWarn, fields,
            "{} did not give GPU {} back within {} ms of the end of its turn, and has {} there: others run at the same "
            "time{}",
            who(client), gpus, std::chrono::duration_cast<std::chrono::milliseconds>(core_.settings().grace).count(),
            rota::bytes_text(bytes), left_out_text(*left_out));
}

void Server::report_refused(Client& client, const scheduler::Quota::Answer& answer) {
  count_refusal(client, answer.gpu, answer.reason);
  const auto left_out = client.refusal_lines.next(now());
  if (!left_out) return;
  JournalFields fields = fields_of(client, "refused", kRefused, GpuSet(std::uint64_t{1} << answer.gpu));
  fields.emplace_back("ROTA_REASON", protocol::kRefusalReasons[static_cast<std::size_t>(answer.reason)]);
  log::with(log::Level::kInfo, fields, "{} was refused memory on GPU {}: {}{}", who(client), gpus_.number(answer.gpu),
            answer.why, left_out_text(*left_out));
}

// An allocation or a context that the driver or Quota had refused has waited, and is finally refused.
void Server::report_no_room(Client& client, const scheduler::RoomQueue::Answer& answer) {
  count_refusal(client, answer.gpu, protocol::RefusalReason::kGpuFull);
  const auto by_quota = client.uncounted.extract(answer.gpu);
  const auto left_out = client.refusal_lines.next(now());
  if (!left_out) return;
  scheduler::Bytes others = 0;  // granted to them, though perhaps not given by the driver yet
  for (const auto& [id, other] : clients_) {
    if (id != client.id && other->gpus().contains(answer.gpu)) others += stays_of(*other, answer.gpu);
  }
  const auto waited = fmt::format(", and it waited {:.1f} s", static_cast<double>(answer.waited.count()) / 1e9);
  std::string why = "the driver has no memory left";
  if (by_quota) {
    why = by_quota.mapped() + waited;
  } else if (others != 0) {
    why += fmt::format(", others have {} that cannot be evicted{}", rota::bytes_text(others), waited);
  }
  JournalFields fields = fields_of(client, "refused", kRefused, GpuSet(std::uint64_t{1} << answer.gpu));
  fields.emplace_back("ROTA_REASON", "gpu_full");
  fields.emplace_back("ROTA_BYTES", fmt::format("{}", answer.bytes));
  log::with(log::Level::kInfo, fields, "{} was refused {} on GPU {}: {}{}", who(client), rota::bytes_text(answer.bytes),
            gpus_.number(answer.gpu), why, left_out_text(*left_out));
}

// Says how many lines about the client were left out.
void Server::report_left_out(const Client& client) {
  const unsigned lines = client.refusal_lines.left_out() + client.revocation_lines.left_out();
  if (lines != 0) log::info("{} was refused memory or revoked {} times more", who(client), lines);
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
    others += fmt::format(", {} are used by programs without rota", bytes_text(outside));
  }
  log::warn(
      "client {} ({}, pid {}) is passed over on GPU {} while others can use it: {} of its memory do not fit next to "
      "{}{}",
      client.id, client.name, client.pid, gpus_.number(decision.gpu), bytes_text(decision.bytes),
      in_the_way_text(decision.bytes, core_.use(decision.client, decision.gpu, modelled_now()).lacks_for_now), others);
}

}  // namespace rota::server
