// The answer to `rota status`: one row per GPU, one per client, produced as the peer reads them.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "scheduler/protocol/byte_text.h"
#include "scheduler/server/client.h"
#include "scheduler/server/decode.h"
#include "scheduler/server/log.h"

namespace rota::server {

using protocol::Kind;
using protocol::Message;

namespace {

std::uint32_t thousandths(double value) {
  return static_cast<std::uint32_t>(std::clamp(std::round(value * 1000), 0.0, 1e9));
}

}  // namespace

// Rows are made one at a time from where the last one left off, so that a slow reader costs no memory; the clients may
// change in between.
void Server::on_status(Connection& connection, std::uint32_t newest) {
  enum class Part { kGpus, kClients, kUses, kAccounts, kDone };
  const std::optional<TrustDomain> domain = options_.visibility == Visibility::kOwn && !connection.is_root()
                                                ? std::optional(connection.domain())
                                                : std::nullopt;
  connection.send_rows([this, domain, part = Part::kGpus, next = std::uint32_t{0}, gpu = std::uint32_t{0}, newest,
                        account = std::string()]() mutable -> std::optional<Message> {
    const TrustDomain* const only = domain ? &*domain : nullptr;
    if (part == Part::kGpus) {
      while (next < protocol::kMaxGpus) {
        if (auto row = status_gpu(next++)) return row;
      }
      part = Part::kClients;
      next = 0;
    }
    if (part == Part::kClients) {
      const auto client = clients_.lower_bound(next);
      if (client != clients_.end()) {
        next = client->first + 1;
        return status_client(*client->second, only);
      }
      part = newest >= protocol::kActivityVersion ? Part::kUses : Part::kAccounts;
      next = 0;
    }
    while (part == Part::kUses) {
      const auto client = clients_.lower_bound(next);
      if (client == clients_.end()) {
        part = Part::kAccounts;
        next = 0;
        break;
      }
      // Its next GPU; the client may be another one than before.
      if (client->first != next) gpu = 0;
      next = client->first;
      const auto found = client->second->gpus.lower_bound(gpu);
      if (found != client->second->gpus.end()) {
        gpu = *found + 1;
        return status_use(client->first, *found);
      }
      ++next;
      gpu = 0;
    }
    if (part == Part::kAccounts) {
      if (newest >= protocol::kLimitVersion) {
        if (const auto row = status_account(account, only)) return row;
      }
      part = Part::kDone;
      return status_end();
    }
    return std::nullopt;
  });
}

std::optional<Message> Server::status_gpu(std::uint32_t index) const {
  const GpuEntry* entry = gpus_.at(index);
  if (entry == nullptr) return std::nullopt;
  const scheduler::GpuState state = core_.gpu(index);
  Message row{.kind = Kind::kStatusGpu};
  protocol::StatusGpu& gpu = row.body.status_gpu;
  gpu.uuid = entry->uuid;
  gpu.index = index;
  gpu.mode = core_.settings().mode;
  gpu.total_bytes = state.total;
  gpu.used_bytes = state.used;
  gpu.clients = state.clients;
  gpu.holders = state.holders;
  gpu.waiters = state.waiters;
  if (const auto reading = readings_.find(index); reading != readings_.end()) {
    gpu.driver_used_bytes = reading->second.used;
    gpu.driver_free_bytes = reading->second.free;
    gpu.measured = 1;
  }
  if (const auto sum = handed_over_.find(index); sum != handed_over_.end()) gpu.handed_over_bytes = sum->second;
  gpu.outside_bytes = state.outside;
  gpu.candidate = static_cast<std::uint32_t>(state.candidate);
  gpu.looking = state.looking ? 1 : 0;
  gpu.active = state.active;
  gpu.turn_ns = static_cast<std::uint64_t>(state.turn.count());
  gpu.switch_ns = static_cast<std::uint64_t>(state.switching.count());
  const scheduler::SharingWhy why = core_.sharing_why(index);
  gpu.reason = why.reason;
  gpu.trial_permille = thousandths(why.trial);
  set_text(gpu.name, entry->name);
  return row;
}

Message Server::status_use(scheduler::ClientId id, std::uint32_t gpu) const {
  const scheduler::ClientUse use = core_.use(id, gpu, modelled_now());
  Message row{.kind = Kind::kStatusUse};
  protocol::StatusUse& shown = row.body.status_use;
  shown = {.client = id,
           .gpu = gpu,
           .known = (use.busy ? protocol::kKnowsBusy : 0) | (use.calls ? protocol::kKnowsCalls : 0),
           .busy_permille = thousandths(use.busy.value_or(0)),
           .calls_per_1000s = static_cast<std::uint64_t>(std::clamp(use.calls.value_or(0) * 1000, 0.0, 1e18)),
           .light = use.light ? 1U : 0U,
           .padding = 0,
           .held_ns = static_cast<std::uint64_t>(use.held.count()),
           .waited_ns = static_cast<std::uint64_t>(use.waited.count()),
           .fixed_bytes = use.fixed,
           .fixed_for_now_bytes = use.fixed_for_now,
           .lacks_bytes = use.lacks,
           .lacks_for_now_bytes = use.lacks_for_now};
  return row;
}

// Once for each client: while its memory does not fit, that is decided anew every ten seconds.
void Server::report_passed_over(Client& client, const scheduler::Decision& decision) const {
  using protocol::bytes_text;
  if (decision.bytes == 0) return log::debug("client {}: is no longer passed over", client.id);
  if (std::exchange(client.was_passed_over, true)) return;
  std::string others;
  for (const auto& [id, other] : clients_) {
    const scheduler::Bytes fixed = core_.use(id, decision.gpu, modelled_now()).fixed;
    if (id == client.id || fixed == 0) continue;
    others += fmt::format(", pid {} ({}) has {} of that", other->pid, other->name, bytes_text(fixed));
  }
  if (const scheduler::Bytes outside = core_.gpu(decision.gpu).outside; outside != 0) {
    others += fmt::format(", programs without rota have {}", bytes_text(outside));
  }
  log::warn(
      "client {} ({}, pid {}) is passed over on GPU {} while others can use it: {} of its memory do not fit beside "
      "{}{}",
      client.id, client.name, client.pid, decision.gpu, bytes_text(decision.bytes),
      protocol::in_the_way_text(decision.bytes, core_.use(client.id, decision.gpu, modelled_now()).lacks_for_now),
      others);
}

Message Server::status_client(const Client& client, const TrustDomain* only) const {
  const scheduler::ClientState& state = *core_.client(client.id);
  Message row{.kind = Kind::kStatusClient};
  protocol::StatusClient& shown = row.body.status_client;
  shown.client = client.id;
  shown.pid = client.pid;
  shown.uid = client.uid;
  shown.gpus = state.touched;
  shown.held_gpus = state.held;
  shown.wanted_gpus = state.wanted;
  for (const std::uint32_t gpu : client.gpus) {
    shown.device_bytes += client.usage->device_bytes[gpu].load();
    shown.resident_bytes += core_.resident_bytes(client.id, gpu);
    shown.promised_bytes += core_.promised_bytes(client.id, gpu);
    shown.asked_bytes += core_.asked_bytes(client.id, gpu);
    shown.context_bytes += core_.context_bytes(client.id, gpu);
    if (const auto measured = client.measured.find(gpu);
        measured != client.measured.end() && measured->second.current) {
      shown.driver_bytes += measured->second.process;
      shown.measured_gpus |= scheduler::GpuMask{1} << gpu;
    }
    if (const std::uint8_t mode = client.usage->memory_modes[gpu].load(); mode <= protocol::kLastMemoryMode) {
      protocol::set_memory_mode(shown, gpu, static_cast<protocol::MemoryMode>(mode));
    }
  }
  shown.moves = moves_of(*client.usage);
  shown.overrun = state.overrun ? 1 : 0;
  if (state.held != 0) shown.since_ns = static_cast<std::uint64_t>((modelled_now() - state.held_since).count());
  if (state.wanted != 0) shown.since_ns = static_cast<std::uint64_t>((modelled_now() - state.wanted_since).count());
  set_text(shown.name, client.name);
  if (only != nullptr && *only != client.domain) {
    shown.pid = 0;
    shown.uid = protocol::kHiddenUser;
    set_text(shown.name, protocol::kHiddenProgram);
  }
  return row;
}

Message Server::status_end() const {
  Message row{.kind = Kind::kStatusEnd};
  row.body.status_end = {.daemon_pid = static_cast<std::uint64_t>(getpid()),
                         .quantum_ns = static_cast<std::uint64_t>(scheduler::quantum_of(core_.settings()).count()),
                         .grants = core_.grants(),
                         .mode = core_.settings().mode,
                         .version1_space = 0,
                         .rota_version = {}};
  set_text(row.body.status_end.rota_version, ROTA_VERSION);
  return row;
}

// The next account behind this key, which becomes that one's. Only those with a limit; the host's only once something
// may have to be moved there.
std::optional<Message> Server::status_account(std::string& after, const TrustDomain* only) const {
  while (const scheduler::Quota::Entry* entry = quota_.account_after(after)) {
    const auto& [key, account] = *entry;
    after = key;
    // Their names are those of users, sessions and processes; the keys do not say to whom a session or process belongs.
    const bool own = only == nullptr || key == "host" || key == fmt::format("user {}", only->payer()) ||
                     key.starts_with(fmt::format("session {} ", only->key()));
    if (!own) continue;
    const scheduler::Bytes host = quota_.host_bytes(account);
    if (account.limits.device == scheduler::kNoLimit && host == 0) continue;
    Message row{.kind = Kind::kStatusAccount};
    protocol::StatusAccount& shown = row.body.status_account;
    shown.clients = static_cast<std::uint32_t>(account.clients.size());
    shown.device_limit = account.limits.device;
    for (scheduler::GpuIndex gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
      shown.device_used = std::max(shown.device_used, account.device(gpu));
    }
    shown.host_limit = account.limits.host;
    shown.host_used = host;
    shown.host_swap_bytes = account.host.has;
    shown.host_spare_bytes = account.host.spare;
    set_text(shown.name, account.name);
    return row;
  }
  return std::nullopt;
}

}  // namespace rota::server
