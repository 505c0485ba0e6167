// The pages that rotad shares with each client: what rotad reads and what it writes.
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "scheduler/server/client.h"
#include "scheduler/server/gangs.h"
#include "scheduler/server/log.h"
#include "scheduler/server/processor_time.h"
#include "scheduler/server/server.h"

namespace rota::server {

namespace {

// How often all usage pages are read for a client with a deficit.
constexpr auto kReadOthers = std::chrono::milliseconds(10);
// A hundred years: the core adds up times.
constexpr std::uint64_t kLatest = std::chrono::nanoseconds(std::chrono::hours(24 * 365 * 100)).count();

}  // namespace

// Whether two clients that both share something may share it with each other. What a client says of itself has no
// effect on clients of other domains. A process gets memory and events of another by opening them, which rota may not
// see; that it has done so unseen is assumed only of processes that were started together or are ranks of one job.
bool Server::may_share_with(const Client& client, const Client& other) {
  if (client.domain != other.domain) return false;
  if (((client.shares | other.shares) & protocol::kSharesOfOthers) != 0) return true;
  const bool started_together =
      !client.innermost_session.empty() && client.innermost_session == other.innermost_session;
  return started_together || (client.gang != 0 && client.gang == other.gang);
}

std::uint32_t Server::watch_of(const Client& client, const Task& task) const {
  const auto asks_of = [&](scheduler::GpuMask gpus, std::uint32_t what) { return (gpus & task.gpus) != 0 ? what : 0; };
  const auto may_share = [&](scheduler::ClientId other) {
    const Program* const waits = find_task(other).program;
    return waits != nullptr && may_share_with(client, static_cast<const Client&>(*waits));
  };
  return asks_of(core_.shared_gpus(), protocol::kWatchCalls) | asks_of(core_.sampling_gpus(), protocol::kWatchSamples) |
         asks_of(core_.metered_gpus(), protocol::kWatchMeter) | asks_of(core_.timed_gpus(), protocol::kWatchTimings) |
         asks_of(core_.alone_gpus(), protocol::kWatchAlone) |
         (core_.sharer_waits(task.id, may_share) ? protocol::kWatchSharers : 0);
}

// The order is the one that protocol.h promises to readers.
void Server::publish(Client& client) {
  follow(client);
  protocol::LeasePage& page = *client.lease;
  bool regrants = false;
  for (const Task& task : client.tasks) {
    for (const std::uint32_t gpu : GpuSet(task.gpus)) {
      regrants = regrants || page.gpus[gpu].grant.load() != shown_grant(task, gpu);
    }
  }
  // Set, not incremented: what follows may fail for want of memory.
  const std::uint32_t change = page.grants_change | 1;
  if (regrants) page.grants_change = change;
  for (const Task& task : client.tasks) publish(client, task);
  if (regrants) page.grants_change = change + 1;
  ++page.event;
  syscall(SYS_futex, &page.event, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Server::publish(const Client& client, const Task& task) {
  const Lease shown = lease_of(client, task);
  const scheduler::ClientState& state = shown.state;
  const auto real = [&](scheduler::Time time) {
    return time.count() == 0 ? 0 : static_cast<std::uint64_t>(time_.real(time).count());
  };
  const std::uint32_t watch = watch_of(client, task);
  const std::uint64_t drain_at = real(state.drain_at);
  const std::uint64_t by = real(shown.give_back_by);
  const std::uint64_t alone_until = real(state.alone_until);
  const std::uint64_t next_turn = real(core_.next_turn(task.id));
  for (const std::uint32_t gpu : GpuSet(task.gpus)) {
    protocol::GpuLease& lease = client.lease->gpus[gpu];
    const std::uint32_t grant = shown_grant(task, gpu);
    if (lease.grant.load() != grant) lease.grant = 0;
    lease.promised_bytes = promised_bytes(task, gpu);
    const scheduler::Bytes resident = resident_bytes(task, gpu);
    if (lease.clear_from_bytes.load() != resident) {
      lease.clear_bytes = 0;
      lease.clear_from_bytes = resident;
    }
    lease.clear_bytes = bytes_to_clear(client, task, gpu);
    lease.too_much_bytes = too_much_[gpu];
    lease.hands_over = hands_over(client, gpu);
    lease.clearing = scheduler::has(core_.clearing_gpus(), gpu);
    lease.movable = others_can_evict(client, gpu);
    lease.fixed_for_now = scheduler::has(core_.later_gpus(), gpu);
    lease.watch = watch;
    lease.waiters = state.waiters;
    lease.drain_at_ns = drain_at;
    lease.give_back_by_ns = by;
    lease.alone_until_ns = alone_until;
    lease.next_turn_ns = next_turn;
    lease.gang_ends = shown.gang_ends;
    lease.gang_step = shown.gang_step;
    lease.gang = task.gang;
    lease.grant = grant;
  }
}

// Wakes nobody: a client reads this when it allocates, and when the program asks how much is free.
void Server::publish_contexts(std::uint32_t gpu) {
  contexts_to_publish_ |= scheduler::bit(gpu);
  publish_too_much(gpu);
  contexts_pass_.run();
}

void Server::publish_contexts_to_all() {
  const scheduler::GpuMask gpus = std::exchange(contexts_to_publish_, 0);
  sums_.clear();
  const Within writing(keeps_sums_);
  for (const auto& [id, client] : clients_) {
    publish_contexts_of(*client, gpus);
    for (const std::uint32_t gpu : client->gpus()) {
      client->lease->gpus[gpu].movable = others_can_evict(*client, gpu);
      client->lease->gpus[gpu].fixed_for_now = scheduler::has(published_.later, gpu);
    }
  }
}

void Server::publish_contexts_of(Client& client, scheduler::GpuMask gpus) {
  for (const std::uint32_t gpu : client.gpus()) {
    if ((gpus & scheduler::bit(gpu)) == 0) continue;
    const scheduler::GpuState state = core_.gpu(gpu);
    protocol::GpuLease& lease = client.lease->gpus[gpu];
    const scheduler::Bytes kept_free = quota_.kept_free(client.id, gpu);
    lease.all_context_bytes.store(state.contexts + state.measured_outside + kept_free, std::memory_order_relaxed);
    lease.too_much_bytes.store(too_much_[gpu], std::memory_order_relaxed);
  }
}

// A holder reads this every few milliseconds while another client waits.
void Server::publish_too_much(std::uint32_t gpu) {
  const scheduler::GpuState state = core_.gpu(gpu);
  const scheduler::Bytes bytes = state.too_much;
  scheduler::Bytes& last = too_much_[gpu];
  const scheduler::Bytes difference = bytes > last ? bytes - last : last - bytes;
  if (difference == 0 || (bytes != 0 && last != 0 && difference < scheduler::step_of(state.total))) return;
  last = bytes;
  contexts_to_publish_ |= scheduler::bit(gpu);
  contexts_pass_.run();
}

void Server::read_usage(Client& client) {
  const protocol::UsagePage& page = *client.usage;
  bool deficit = false;
  for (const std::uint32_t gpu : client.gpus()) deficit = deficit || page.gpus[gpu].short_bytes.load() != 0;
  if (deficit) read_others();
  for (const std::uint32_t gpu : client.gpus()) {
    tell_usage(client, gpu);
    tell_pinned(client, gpu);
    if (quota_.rooms().awaited(gpu)) tell_stays(client, gpu);
    publish_too_much(gpu);
  }
  read_host(client);
  read_activity(client);
  if (client.gang != 0) gangs_due_.insert(client.gang);
}

void Server::tell_pinned(Client& client, std::uint32_t gpu) {
  const protocol::GpuUsage& usage = client.usage->gpus[gpu];
  const auto why = static_cast<protocol::PinAll>(usage.pinned_all.load(std::memory_order_relaxed));
  // If a process is pinned as a whole, so is what it allocates later. A process without a context has to make one
  // first, and is then no longer pinned.
  const bool all = why != protocol::PinAll::kNo && why != protocol::PinAll::kNoContext;
  const scheduler::Bytes bytes =
      all ? protocol::kMaxGpuBytes
          : std::min(usage.pinned_bytes.load(std::memory_order_relaxed), protocol::kMaxGpuBytes);
  if (std::exchange(client.pinned[gpu], bytes) == bytes) return;
  carry_out(apply(scheduler::limit::Pin{client.id, gpu, bytes}).outcome);
}

// The memory that others wait for this client to free.
scheduler::Bytes Server::stays_of(const Client& client, std::uint32_t gpu) {
  const protocol::GpuUsage& usage = client.usage->gpus[gpu];
  const scheduler::Bytes fixed = usage.fixed_bytes.load(std::memory_order_relaxed);
  const scheduler::Bytes leaves = usage.fixed_for_now_bytes.load(std::memory_order_relaxed);
  return std::min(fixed - std::min(fixed, leaves), protocol::kMaxGpuBytes);
}

void Server::tell_stays(Client& client, std::uint32_t gpu) {
  // A client that was there before this rotad is as old as it says, any other as old as its connection.
  const scheduler::Time said(static_cast<std::int64_t>(std::min<std::uint64_t>(client.usage->began_ns, INT64_MAX)));
  const bool is_older = client.connected_at < others_come_back_until_ && said != scheduler::Time{};
  const scheduler::Quota::Stays now{.gang = client.gang,
                                    .bytes = stays_of(client, gpu),
                                    .blocks = client.usage->all_threads_wait != 0,
                                    .began = is_older ? std::min(said, client.connected_at) : client.connected_at};
  const auto [known, fresh] = client.stays.try_emplace(gpu, now);
  if (!fresh && std::exchange(known->second, now) == now) return;
  carry_out(apply(scheduler::limit::Stays{client.id, gpu, now}).outcome);
}

scheduler::event::Usage Server::usage_of(const Program& program, std::uint32_t gpu) const {
  const protocol::GpuUsage& usage = static_cast<const Client&>(program).usage->gpus[gpu];
  const std::uint32_t refusals = usage.refusals.load();  // first: it is written last
  const scheduler::Bytes shortage = usage.short_bytes.load();
  return {.client = 0,
          .gpu = gpu,
          .used = usage.device_bytes.load(std::memory_order_relaxed),
          .fixed = usage.fixed_bytes.load(std::memory_order_relaxed),
          .resident = usage.resident_bytes.load(std::memory_order_relaxed),
          .shortage = shortage,
          .free = shortage != 0 ? usage.free_bytes.load(std::memory_order_relaxed) : 0,
          .refusals = refusals,
          .fixed_for_now = usage.fixed_for_now_bytes.load(std::memory_order_relaxed)};
}

scheduler::GangDrain::Word Server::rest_of(const Program& program, const Task& task) const {
  const protocol::UsagePage& page = *static_cast<const Client&>(program).usage;
  return scheduler::GangDrain::word_of(page.gpus[*GpuSet(task.gpus).begin()].gang_rest.load());
}

void Server::read_activity(Program& program) {
  auto& client = static_cast<Client&>(program);
  const std::uint32_t before = std::exchange(client.shares, client.usage->shares.load());
  const bool shares = client.shares != 0;
  if (before != client.shares) {  // whom it may share something with
    for (const std::uint32_t gpu : client.gpus()) {
      core_.for_each_holder(gpu, [&](scheduler::ClientId id) {
        for_each_task_of(id, [&](Program& holder, const Task&) { changed_.insert(holder.id); });
      });
    }
  }
  for (Task& task : client.tasks) {
    if (task.gang == 0) tell_activity(task.activity, activity_of(client, task, shares));
  }
  // All tasks that are members are of the same gang.
  const auto member = std::ranges::find_if(client.tasks, [](const Task& task) { return task.gang != 0; });
  if (member == client.tasks.end()) return;
  Gang& gang = *gang_of(*member);
  tell_activity(gang.activity, activity_of(gang));
}

// The client says the same on all of the task's GPUs. It is trusted no more than anything else that a client says.
scheduler::event::Activity Server::activity_of(const Program& program, const Task& task, bool shares) {
  const protocol::GpuUsage& page = static_cast<const Client&>(program).usage->gpus[*GpuSet(task.gpus).begin()];
  const auto time = [](const std::atomic<std::uint64_t>& ns) {
    return scheduler::Time(static_cast<std::int64_t>(std::min(ns.load(), kLatest)));
  };
  const std::uint64_t samples = page.samples.load();
  return {.client = task.id,
          .calls = page.calls.load(),
          .open = time(page.open_ns),
          .counted = time(page.counted_ns),
          .samples = samples,
          .busy = std::min(page.busy_samples.load(), samples),
          .in_spells = std::min(page.spell_samples.load(), samples),
          .switches = page.switches.load(),
          .switching = time(page.switch_ns),
          .shares = shares};
}

// Of all members of the gang, which run at the same times. What they share they share with each other, so the gang need
// not run concurrently with others for that.
scheduler::event::Activity Server::activity_of(const Gang& gang) const {
  scheduler::event::Activity all{.client = gang.id};
  for_each_member(gang, [&](const Program& client, const Task& task) {
    const scheduler::event::Activity one = activity_of(client, task, false);
    all.calls += one.calls;
    all.samples += one.samples;
    all.busy += one.busy;
    all.in_spells += one.in_spells;
    all.open = std::max(all.open, one.open);
    all.counted = std::max(all.counted, one.counted);
    all.switches = std::max(all.switches, one.switches);
    all.switching = std::max(all.switching, one.switching);
  });
  all.switching += gang.draining;
  return all;
}

// `last`: what the core was told last.
void Server::tell_activity(LastActivity& last, const scheduler::event::Activity& activity) {
  const LastActivity news{activity.calls, activity.samples, activity.switches, std::uint64_t{activity.shares}};
  if (std::exchange(last, news) != news) step(activity);
}

// A remark in the event log: the core's decisions do not depend on what has moved.
void Server::note_moves(Client& client) {
  const auto moved = client.burst.read(moves_of(*client.usage), now());
  count_burst(client, moved, false);
  if (!moved) return;
  const std::string text = text_of(*moved);
  log::debug("client {} ({}, pid {}) has moved {}", client.id, client.name, client.pid, text);
  event_log_.remark(fmt::format("moved {} pid {}: {}", client.id, client.pid, text), modelled_now());
}

// The deficit of one client is compared with what all have, so the numbers have to be from the same time. Not more
// often than clients retry: a client that keeps repeating itself must not keep rotad busy reading all pages.
void Server::read_others() {
  if (now() - others_read_at_ < kReadOthers) return;
  others_read_at_ = now();
  others_pass_.try_now();
}

// Where many clients evict memory, each page that shows it leads to a decision of the core's: so other work is done in
// between. Returns whether all pages have been read.
bool Server::read_some_others() {
  constexpr int kBetweenClocks = 8;
  const std::chrono::nanoseconds until = processor_time() + kAtOnce;
  auto next = clients_.lower_bound(next_other_);
  for (int i = 1; next != clients_.end(); ++i) {
    read_usage(*next->second);
    ++next;
    if (i % kBetweenClocks == 0 && processor_time() >= until) break;
  }
  next_other_ = next == clients_.end() ? 0 : next->first;
  return next == clients_.end();
}

}  // namespace rota::server
