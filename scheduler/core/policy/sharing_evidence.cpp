// What programs report, and what that says about them.
#include <algorithm>
#include <utility>

#include "scheduler/core/policy/sharing.h"

namespace rota::scheduler {

void Sharing::heard(Client& client, const event::Activity& activity, Time now) {
  Evidence& evidence = client.evidence;
  const event::Activity before = std::exchange(evidence.last, activity);
  const bool called = activity.calls != before.calls;
  if (called) evidence.called_at = now;
  if (called) evidence.goes_on(before.open, kWithoutCalls);
  if (called || activity.shares != before.shares) may_join(client);
  if (activity.shares != before.shares) {
    for_each_gpu(client.state.touched, [&](GpuIndex index) { gpus_[index].news_beside = true; });
  }
  const bool held = activity.open - before.open >= kWithoutCalls;
  if (held && before.calls != 0 && activity.counted - before.counted >= kWithoutCalls) evidence.rested_at = now;
  if (activity.switches > before.switches && activity.switching >= before.switching) {
    const auto count = static_cast<std::int64_t>(std::min<std::uint64_t>(activity.switches - before.switches, 1 << 20));
    // At most the time that it has held its GPUs since: others' turns depend on this value.
    const Time held = Bookkeeping::held_time(client, now);
    const Time most = std::min(held - std::exchange(evidence.held_when_heard, held), kLongestTurn);
    const Time each = std::min((activity.switching - before.switching) / count, most);
    // The newest value counts a quarter: a single slow hand-over proves little.
    for_each_gpu(client.state.touched, [&](GpuIndex index) {
      Time& switching = client.share(index)->switching;
      switching = switching == Time{} ? each : (switching * 3 + each) / 4;
      renew_switching(index, now);
    });
  }
  books_.mark_changed(client.state.touched);
}

// The mean over programs that have made calls lately: each has its turn, whether it comes often or not.
void Sharing::renew_switching(GpuIndex index, Time now) {
  Gpu& gpu = books_.gpu(index);
  Time sum{};
  std::int64_t count = 0;
  for (const Client* client : gpu.all) {
    const Time switching = client->share(index)->switching;
    if (switching == Time{} || now - client->evidence.called_at >= Active::kActive) continue;
    sum += switching;
    ++count;
  }
  if (count == 0) return;
  gpus_[index].switching = sum / count;
  gpu.credit = std::max(kCredit, 3 * gpus_[index].switching);
}

void Sharing::wants(Client& client, Time now) {
  client.evidence.called_at = now;
  may_join(client);
  if (client.woke && client.state.wanted == 0) {
    ++client.evidence.wakes;
    if (client.last_held != Time{} && now - client.last_held >= kLongPause) client.evidence.rested_at = now;
  }
  books_.mark_changed(client.state.touched);
}

void Sharing::begin_window(Law& law, Time now) {
  law.window_since = now;
  for (const ClientId id : law.set) {
    Client& client = *books_.find(id);
    client.measurement.window_from = client.evidence.last;
  }
}

// Whether a client is still draining work that it had queued before turns began.
bool Sharing::drains(const Law& law, Time now) const {
  const auto drains = [&](const Client* holder) {
    const ClientState& state = holder->state;
    return state.held_since <= law.since && state.waiters != 0 && state.drain_at <= now;
  };
  bool any = false;
  for_each_gpu(law.gpus, [&](GpuIndex index) { any = any || std::ranges::any_of(books_.gpu(index).holders, drains); });
  return any;
}

// The same for several of its clients that share a GPU.
template <typename Which>
bool Sharing::several_on_one(const Law& law, Which which) const {
  bool found = false;
  for_each_gpu(law.gpus, [&](GpuIndex index) {
    const auto such = [&](ClientId id) { return which(*books_.find(id)); };
    found = found || std::ranges::count_if(active_.on(index), such) > 1;
  });
  return found;
}

// Whether several programs have kept the GPU busy for long periods in the same window, or may have.
bool Sharing::collide(const Law& law) const {
  return several_on_one(law, [](const Client& client) {
    const event::Activity& activity = client.evidence.last;
    const event::Activity& from = client.measurement.window_from;
    const bool unknown = activity.samples - from.samples < kCollides && activity.calls != from.calls;
    return unknown || activity.in_spells - from.in_spells >= kCollides;
  });
}

void Sharing::begin_measuring(Law& law, Time now) {
  law.measuring = true;
  law.since = now;
  for (const ClientId id : law.set) {
    Client& client = *books_.find(id);
    Measurement& measurement = client.measurement;
    measurement.from = client.evidence.last;
    measurement.held_from = Bookkeeping::held_time(client, now);
    measurement.waited_from = Bookkeeping::waited_time(client, now);
    measurement.wakes_from = client.evidence.wakes;
  }
}

// Whether several contended when that was measured.
bool Sharing::contended(const Law& law) const {
  return several_on_one(law, [](const Client& client) { return client.measurement.alone != 0; });
}

// Whether the programs that were measured turn out to come in bursts, or to be faster than they were alone.
bool Sharing::doubtful(const Law& law, const Answer& known, Time now) const {
  for (const ClientId id : law.set) {
    const Client& client = *books_.find(id);
    const Evidence& evidence = client.evidence;
    const Measurement& measurement = client.measurement;
    // Since its trial began.
    const double passed = seconds(evidence.last.counted - measurement.from.counted);
    const auto calls = static_cast<double>(evidence.last.calls - measurement.from.calls);
    if (passed > 0 && calls / passed > kFaster * measurement.own_rate + kFewCalls) return true;
  }
  const auto contends = [now](const Client& client) { return !in_bursts(client.evidence, now); };
  return known.ratio != 0 && !several_on_one(law, contends);
}

bool Sharing::in_bursts(const Evidence& evidence, Time now) {
  return evidence.rested_at != Time{} && now - evidence.rested_at < kLately;
}

bool Sharing::has_samples(const Law& law) const {
  return std::ranges::all_of(law.set, [&](ClientId id) {
    const Client& client = *books_.find(id);
    return client.evidence.last.samples - client.measurement.from.samples >= kEnough;
  });
}

std::vector<double> Sharing::all_u(const Law& law) const {
  std::vector<double> all;
  for (const ClientId id : law.set) all.push_back(books_.find(id)->measurement.u);
  return all;
}

// Evaluates what turns have shown of a client in `passed`: u, and its rate by itself. Returns whether it contends.
bool Sharing::weigh(Client& client, Time passed, Time now) {
  const Evidence& evidence = client.evidence;
  Measurement& measurement = client.measurement;
  const event::Activity& from = measurement.from;
  const Time held = Bookkeeping::held_time(client, now) - measurement.held_from;
  const Time waited = Bookkeeping::waited_time(client, now) - measurement.waited_from;
  const Time open = evidence.last.open - from.open;
  // Before its turns began it did nothing; while they drained, the GPU did the work of its earlier calls.
  const Time own = passed - waited - (evidence.last.switching - from.switching);
  const bool often = evidence.wakes - measurement.wakes_from >= kComesOften;
  const std::uint64_t samples = evidence.last.samples - from.samples;
  if (samples >= kFew && own > Time{}) {
    const double busy = static_cast<double>(evidence.last.busy - from.busy) / static_cast<double>(samples);
    // For a program that comes in bursts, u is that of its bursts: that is when others are in its way.
    measurement.u = often ? busy * seconds(open) / seconds(own) : busy;
  }
  const bool all_the_time = seconds(held + waited) >= kContends * seconds(passed);
  const std::uint64_t calls = evidence.last.calls - from.calls;
  const bool contends = (all_the_time || often) && !in_bursts(evidence, now) && calls != 0 && own > Time{};
  measurement.own_rate = own > Time{} ? static_cast<double>(calls) / seconds(own) : 0;
  measurement.alone = contends ? measurement.own_rate : 0;
  return contends;
}

}  // namespace rota::scheduler
