// Limits: what clients reserve, and what the server tells them and others about it.
#include <algorithm>
#include <asio/post.hpp>
#include <utility>

#include "scheduler/base/host_memory.h"
#include "scheduler/protocol/reserve_number.h"
#include "scheduler/server/client.h"
#include "scheduler/server/decode.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/log.h"

namespace rota::server {

using protocol::Kind;
using protocol::Message;
using scheduler::Quota;
namespace event = scheduler::event;

namespace {

constexpr std::size_t kMostSessions = 16;
constexpr std::chrono::seconds kAskKernel{1};

template <typename Said>
scheduler::Reservation reservation(const Said& said) {
  return {said.device_bytes, said.movable_bytes, said.fixed_bytes, said.swapped_bytes};
}

}  // namespace

// The only way in which limits change: so an event log has all changes.
scheduler::LimitDecisions Server::apply(const scheduler::LimitEvent& event) {
  const scheduler::Time time = now();
  scheduler::LimitDecisions decisions = scheduler::apply(limited_, event, time);
  event_log_.write(event, time, modelled_now(), quota_, decisions);
  return decisions;
}

void Server::follow_host() {
  limits_.follow_host(quota_, [this](const std::string& account, const scheduler::Limits& limits) {
    apply(limit::SetLimits{account, limits});
  });
}

void Server::on_limits(Client& client, const Message& message) {
  const auto known = [&](std::uint32_t gpu) { return client.gpus().contains(gpu); };
  if (message.kind == Kind::kSession) {
    // The sessions of nested `rota run`s; a client that keeps naming new ones must not fill rotad's memory.
    if (client.sessions.size() >= kMostSessions) return;
    scheduler::Quota::Membership membership = limits_.membership(message.body.session, client.domain);
    // The outermost comes first: starting many `rota run`s inside one gains nobody more of the GPU.
    client.sessions.push_back(message.body.session);
    if (client.sessions.size() == 1) join_session(client, membership.key);
    client.innermost_session = membership.key;
    apply(limit::Join{client.id, {std::move(membership)}});
    publish_limits(client);
    bound_host(client);
    publish(client);  // the client may wait for it
    share_host();
  } else if (message.kind == Kind::kReserve && known(message.body.reserve.gpu)) {
    const protocol::Reserve& wanted = message.body.reserve;
    tell_pinned(client, wanted.gpu);  // whether what it gets will stay
    if (quota_.exceeds_gpu(client.id, wanted.gpu, wanted.device_bytes)) host_pass_.run();
    // If the client's user has many requests open, a request that would have to wait is refused at once.
    Budget::Share waits = asks_budget_.take(client.domain.payer());
    carry_out(apply(limit::Reserve{client.id, wanted.gpu, wanted.number, reservation(wanted),
                                   waits ? Quota::kPatience : scheduler::Time{}})
                  .outcome);
    if (quota_.asks(client.id, wanted.gpu)) client.asks[wanted.gpu] = std::move(waits);
  } else if (message.kind == Kind::kState && known(message.body.state.gpu)) {
    const protocol::State& has = message.body.state;
    client.tightening = false;
    carry_out(apply(limit::State{client.id, has.gpu, reservation(has), has.answered, has.round}).outcome);
    confirm(client, has.gpu);
    // A client that was stopped for a while is asked once, not for each question that came up meanwhile.
    if (std::exchange(client.tighten_again, false)) tighten(client);
  }
}

void Server::tell_memory_wait() {
  apply(limit::MemoryWait{limits_.settings().memory_wait.value_or(scheduler::RoomQueue::kPatience)});
}

// While a client waits, the limits are told of each page that is read. This is for pages that were read before, and for
// pages that have changed without a message.
void Server::tell_stays_of_all() {
  const scheduler::GpuMask gpus = std::exchange(rooms_to_read_, 0);
  for (const auto& [id, client] : clients_) {
    const scheduler::GpuMask all = client->gpus().mask();
    for (const std::uint32_t gpu : GpuSet(client->gang != 0 || !client->stays.empty() ? all : gpus & all))
      tell_stays(*client, gpu);
  }
  for (const limit::AwaitRoom& each : std::exchange(rooms_to_await_, {})) carry_out(apply(each).outcome);
}

void Server::read_rooms() {
  for (std::uint32_t gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    if (quota_.rooms().awaited(gpu)) rooms_to_read_ |= scheduler::bit(gpu);
  }
  if (rooms_to_read_ != 0) rooms_pass_.run();
}

void Server::await_room(Client& client, const protocol::AwaitRoom& wanted) {
  if (!client.gpus().contains(wanted.gpu)) return;
  const auto time = [this](std::uint64_t ns) {
    return std::min(now(), scheduler::Time(static_cast<std::int64_t>(std::min<std::uint64_t>(ns, INT64_MAX))));
  };
  Message waits{.kind = Kind::kTryAgain};
  waits.body.try_again = {
      .gpu = wanted.gpu, .number = wanted.number, .answer = protocol::TryAgain::Answer::kWaits, .padding = 0};
  tell(client, waits);
  if (movers_may_come(wanted.gpu)) {
    protocol::AwaitRoom& waiting = client.for_movers[wanted.gpu] = wanted;
    waiting.bytes = std::min(waiting.bytes, protocol::kMaxGpuBytes);
    return try_again_soon(client, wanted);
  }
  const limit::AwaitRoom event{{.client = client.id,
                                .gpu = wanted.gpu,
                                .number = wanted.number,
                                .bytes = std::min(wanted.bytes, protocol::kMaxGpuBytes),
                                .since = time(wanted.since_ns),
                                .tried = time(wanted.tried_ns),
                                .what = wanted.what}};
  // Decided once it is known what all others have by now; but one client must not fill rotad's memory.
  const auto is_of_client = [&](const limit::AwaitRoom& each) { return each.request.client == client.id; };
  const auto waiting = static_cast<std::size_t>(std::ranges::count_if(rooms_to_await_, is_of_client));
  if (waiting >= scheduler::RoomQueue::kMostOfClient) return carry_out(apply(event).outcome);
  rooms_to_await_.push_back(event);
  rooms_to_read_ |= scheduler::bit(wanted.gpu);
  rooms_pass_.run();
}

void Server::join_session(Client& client, const std::string& key) {
  Session& session = sessions_[key];
  client.session = key;
  if (session.clients++ == 0) session.number = ++last_session_;
  for (const Task& task : client.tasks) {
    if (task.gang == 0) step(event::Session{task.id, session.number});
  }
}

void Server::leave_session(const std::string& key) {
  const auto session = sessions_.find(key);
  if (session != sessions_.end() && --session->second.clients == 0) sessions_.erase(session);
}

void Server::carry_out(const Quota::Outcome& outcome) {
  // First, since a client may read what is left as soon as it has its answer.
  if (outcome.changed) limits_pass_.run();
  for (const Quota::Answer& answer : outcome.answers) {
    const auto found = clients_.find(answer.client);
    if (found == clients_.end()) continue;
    publish_limits(*found->second);
    found->second->asks.erase(answer.gpu);
    Message message{.kind = Kind::kReserved};
    message.body.reserved = {.gpu = answer.gpu,
                             .number = answer.number,
                             .device_bytes = answer.reserved.device,
                             .movable_bytes = answer.reserved.movable,
                             .granted = answer.granted ? 1U : 0U,
                             .text = {},
                             .full = answer.full() ? 1U : 0U,
                             .fixed_bytes = answer.reserved.fixed,
                             .swapped_bytes = answer.reserved.swapped};
    set_text(message.body.reserved.text, answer.why);
    std::map<std::uint32_t, std::string>& uncounted = found->second->uncounted;
    if (answer.granted) {
      uncounted.erase(answer.gpu);
    } else if (protocol::refusal_counts(answer.number, answer.full())) {
      report_refused(*found->second, answer);
    } else if (answer.full()) {
      uncounted[answer.gpu] = answer.why;
    }
    tell(*found->second, message);
  }
  for (const scheduler::RoomQueue::Answer& answer : outcome.rooms) {
    const auto found = clients_.find(answer.client);
    if (found == clients_.end()) continue;
    Message message{.kind = Kind::kTryAgain};
    message.body.try_again = {
        .gpu = answer.gpu,
        .number = answer.number,
        .answer = answer.again ? protocol::TryAgain::Answer::kAgain : protocol::TryAgain::Answer::kRefused,
        .padding = 0};
    tell(*found->second, message);
    found->second->stays.clear();
    if (!answer.again) report_no_room(*found->second, answer);
  }
  for (const scheduler::ClientId id : outcome.tighten) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) continue;
    tighten(*found->second);
  }
  if (!outcome.measure.empty()) {
    // Later: this call may come from a reading itself.
    asio::post(io_, [this, gpus = outcome.measure] {
      if (!stopped_) guarded("measure", [&] { measure_for_requests(gpus); });
    });
  }
  share_host();
  schedule_deadline();
}

// Each share is published before the client's page is read once more, as pages.h requires; so memory that one client is
// told to give up is given to others only once it is known to be free. Ends unless clients keep changing their pages.
void Server::share_host() {
  shares_pass_.run();
}

void Server::share_host_now() {
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<scheduler::ClientId> changed = apply(limit::ShareHost{}).shared;
    for (const scheduler::ClientId id : changed) {
      const auto found = clients_.find(id);
      if (found == clients_.end()) continue;
      Client& client = *found->second;
      const Quota::HostShare share = quota_.host_share(id);
      const bool more = share.most > client.lease->host_most_bytes.load();
      publish_share(client);
      const Quota::HostUse use = client.host = host_use(client);
      apply(limit::UseHost{id, use});
      if (use.spare > share.spare || use.has > share.most || (more && use.lacks != 0)) publish(client);  // wakes it
    }
    if (changed.empty()) return;
  }
}

// Sets a share before a client that a limit concerns can take host memory: it gets more once the host's memory is
// shared out again.
void Server::bound_host(Client& client) {
  if (!apply(limit::BoundHost{client.id}).yes) return;
  publish_share(client);
  client.host = host_use(client);
  apply(limit::UseHost{client.id, client.host});
}

void Server::publish_share(Client& client) {
  const Quota::HostShare share = quota_.host_share(client.id);
  protocol::LeasePage& page = *client.lease;
  page.host_spare_most_bytes = share.spare;
  page.host_most_bytes = share.most;
  page.host_limited = share.most == scheduler::kNoLimit ? 0 : 1;
}

// Reclaimable memory counts as left for everybody, so no client may invent it: it cannot be more than what the client's
// process has in the host's memory, according to the kernel.
Quota::HostUse Server::host_use(Client& client) const {
  const protocol::UsagePage& page = *client.usage;
  Quota::HostUse use{
      .has = page.host_bytes.load(), .spare = page.host_spare_bytes.load(), .lacks = page.host_lacking_bytes.load()};
  // For a client that repeats a figure which its process does not have, the kernel is asked only now and then.
  const bool news = std::exchange(client.spare_said, use.spare) != use.spare;
  if (use.spare > client.in_host_memory && (news || now() >= client.resident_at + kAskKernel)) {
    client.in_host_memory = rota::resident_bytes(client.pid);
    client.resident_at = now();
  }
  use.spare = std::min(use.spare, client.in_host_memory);
  return use;
}

void Server::read_host(Client& client) {
  const Quota::HostUse use = host_use(client);
  if (std::exchange(client.host, use) == use) return;
  apply(limit::UseHost{client.id, use});
  share_host();
}

void Server::tighten(Client& client) {
  if (client.tightening) {
    client.tighten_again = true;
    return;
  }
  client.tightening = true;
  Message message{.kind = Kind::kTighten};
  message.body.tighten = {.round = quota_.round()};
  tell(client, message);
}

// This wakes nobody: the client reads it when it is asked for its numbers.
void Server::publish_limits(Client& client) {
  const scheduler::Bytes limit = quota_.limit(client.id);
  client.lease->limit_bytes.store(limit, std::memory_order_relaxed);
  for (const std::uint32_t gpu : client.gpus()) {
    const scheduler::Bytes left = limit == scheduler::kNoLimit ? scheduler::kNoLimit : quota_.left(client.id, gpu);
    protocol::GpuLease& lease = client.lease->gpus[gpu];
    lease.left_bytes.store(left, std::memory_order_relaxed);
    lease.context_bytes.store(context_bytes(client, gpu), std::memory_order_relaxed);
    lease.fixed_of_others_bytes.store(quota_.fixed_of_others(client.id, gpu), std::memory_order_relaxed);
  }
}

void Server::publish_limits_to_all() {
  for (const auto& [id, client] : clients_) publish_limits(*client);
}

// What unmanaged programs have on a GPU may have become more or less.
void Server::follow_outside() {
  for (std::uint32_t gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    const scheduler::Bytes outside = core_.gpu(gpu).measured_outside;
    if (std::exchange(followed_outside_[gpu], outside) == outside) continue;
    publish_contexts(gpu);
    carry_out(apply(limit::GpuChanged{gpu}).outcome);
  }
}

// A message does not wake the client, but a change of its page does.
void Server::tell(Client& client, const Message& message) {
  const auto connection = connections_.find(client.connection);
  if (connection == connections_.end()) return;
  connection->second->send(message);
  publish(client);
}

}  // namespace rota::server
