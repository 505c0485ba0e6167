// Counts what programs do on their GPUs (scheduler/metrics/book.h), for metrics.
#include <algorithm>
#include <asio/post.hpp>
#include <utility>

#include "scheduler/base/host_memory.h"
#include "scheduler/server/client.h"
#include "scheduler/server/container_id.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/metrics_server.h"
#include "scheduler/server/pinned.h"

namespace rota::server {

using protocol::GpuUsage;
using protocol::Moves;
using protocol::Totals;

namespace {

// The path in version 2's hierarchy, or in version 1's of memory: the first that is below the root.
std::string cgroup_of(pid_t pid) {
  const auto all = pid == 0 ? std::vector<Cgroup>() : rota::cgroups_of(std::to_string(pid));
  std::string path;
  for (const Cgroup& each : all) {
    if (each.mount.empty() || !(path.empty() || path == "/")) continue;
    path = each.path.empty() ? "/" : each.path;
  }
  return path;
}

std::uint64_t more(std::uint64_t now, std::uint64_t before, std::uint64_t most) {
  return std::min(now - std::min(now, before), most);
}

}  // namespace

// Of the innermost session that has one; empty: none has.
std::string Server::session_name(const Client& client) {
  for (auto each = client.sessions.rbegin(); each != client.sessions.rend(); ++each) {
    if (each->name[0] != '\0') return each->name;
  }
  return {};
}

// Begins to count a client's use of the GPU.
void Server::track(Client& client, std::uint32_t gpu) {
  if (!client.series) {
    protocol::SeriesKey key;
    key.user = user_names_.of(client.uid);
    key.session = session_name(client);
    key.cgroup = cgroup_of(client.pid);
    key.container = container_in(key.cgroup);
    client.series = std::move(key);
    client.moved = moves_of(*client.usage);
    client.moved_at = now();
  }
  const GpuEntry& entry = *gpus_.at(gpu);
  const auto place = book_.join(entry.uuid, entry.number, *client.series, now());
  const GpuUsage& page = client.usage->gpus[gpu];
  const auto [tracked, unused] =
      client.tracked.emplace(gpu, Tracked{place, metrics::Turns(modelled_now()), moves_of(page)});
  tracked->second.turns.start_at(page.switches.load(), page.switch_ns.load());
}

// Counts what it has done up to now, and what it does from now on.
void Server::follow(Client& client) {
  for (auto& [gpu, tracked] : client.tracked) {
    const Task* const task = client.tasks.on(gpu);
    const bool holds = task != nullptr && shown_grant(*task, gpu) != 0;
    const bool waits = task != nullptr && !holds && scheduler::has(state_of(*task).wanted, gpu);
    tracked.turns.follow(holds, waits, modelled_now(), book_.totals(tracked.place), book_.gpu(tracked.place));
  }
}

// Whether a process says what it has moved on each GPU. A process of an earlier version gives only the sum of all GPUs,
// of which each gets an equal part. No more is believed than a bus can move.
bool Server::tells_moves_by_gpu(const Client& client) {
  return std::ranges::any_of(client.tracked, [&](const auto& each) {
    const Moves moves = moves_of(client.usage->gpus[each.first]);
    return moves.out_bytes != 0 || moves.in_bytes != 0;
  });
}

void Server::count_moves(Client& client) {
  // First: a process writes it last.
  const Moves said = moves_of(*client.usage);
  constexpr std::uint64_t kBytesPerNs = 2;  // 2 TB/s
  constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 30;
  const scheduler::Time time = now();
  const auto passed = static_cast<std::uint64_t>((time - std::exchange(client.moved_at, time)).count());
  const std::uint64_t most = kAtOnce + passed * kBytesPerNs;
  const Moves before = std::exchange(client.moved, said);
  const bool by_gpu = tells_moves_by_gpu(client);
  const std::uint64_t out = more(said.out_bytes, before.out_bytes, most);
  const std::uint64_t in = more(said.in_bytes, before.in_bytes, most);
  const std::uint64_t parts = client.tracked.size();
  bool first = true;
  for (auto& [gpu, tracked] : client.tracked) {
    Totals& totals = book_.totals(tracked.place);
    if (by_gpu) {
      const Moves here = moves_of(client.usage->gpus[gpu]);
      const Moves earlier = std::exchange(tracked.moved, here);
      totals.out_bytes += more(here.out_bytes, earlier.out_bytes, most);
      totals.in_bytes += more(here.in_bytes, earlier.in_bytes, most);
    } else {
      totals.out_bytes += out / parts + (first ? out % parts : 0);
      totals.in_bytes += in / parts + (first ? in % parts : 0);
    }
    first = false;
  }
}

// `moved`: a burst on all GPUs together. `ended`: the client has ended.
void Server::count_burst(Client& client, const std::optional<Moves>& moved, bool ended) {
  constexpr std::uint64_t kLongest = 3'600'000'000'000;
  const bool by_gpu = tells_moves_by_gpu(client);
  for (auto& [gpu, tracked] : client.tracked) {
    const Moves here = moves_of(client.usage->gpus[gpu]);
    const auto burst = !by_gpu ? moved : ended ? tracked.burst.end(here) : tracked.burst.read(here, now());
    if (!burst) continue;
    protocol::GpuTotals& totals = book_.gpu(tracked.place);
    if (burst->out_bytes != 0) totals.moves_out.add(protocol::kMoveBounds, std::min(burst->out_ns, kLongest));
    if (burst->in_bytes != 0) totals.moves_in.add(protocol::kMoveBounds, std::min(burst->in_ns, kLongest));
  }
}

void Server::count_revocation(Client& client, const Task* task) {
  for (auto& [gpu, tracked] : client.tracked) {
    const bool concerned = task == nullptr || scheduler::has(task->gpus, gpu);
    if (concerned && tracked.turns.holds()) ++book_.totals(tracked.place).revocations;
  }
}

void Server::count_refusal(Client& client, std::uint32_t gpu, protocol::RefusalReason reason) {
  const auto tracked = client.tracked.find(gpu);
  if (tracked == client.tracked.end()) return;
  ++book_.totals(tracked->second.place).refusals[static_cast<std::size_t>(reason)];
}

void Server::count(Client& client) {
  follow(client);
  count_moves(client);
  for (auto& [gpu, tracked] : client.tracked) {
    const GpuUsage& page = client.usage->gpus[gpu];
    tracked.turns.say_switches(page.switches.load(), page.switch_ns.load(), book_.gpu(tracked.place));
  }
}

// For a program that has ended. May be called again.
void Server::untrack(Client& client) {
  if (client.tracked.empty()) return;
  count(client);
  count_burst(client, client.burst.end(moves_of(*client.usage)), true);
  while (!client.tracked.empty()) {
    book_.leave(client.tracked.begin()->second.place, now());
    client.tracked.erase(client.tracked.begin());
  }
}

void Server::add_gauges(const Client& client) {
  for (const auto& [gpu, tracked] : client.tracked) {
    const GpuUsage& page = client.usage->gpus[gpu];
    const auto bytes = [](const std::atomic<std::uint64_t>& said) {
      return std::min(said.load(), protocol::kMaxGpuBytes);
    };
    protocol::Gauges& now = book_.gauges(tracked.place);
    const std::uint64_t allocated = bytes(page.device_bytes);
    const std::uint64_t fixed = std::min(bytes(page.fixed_bytes), allocated);
    const std::uint64_t for_now = std::min(bytes(page.fixed_for_now_bytes), fixed);
    const Pinned pinned = pinned_of(page, fixed - for_now);
    const auto mode = static_cast<protocol::MemoryMode>(page.memory_mode.load());
    ++now.programs;
    now.allocated_bytes += allocated;
    now.for_now_bytes += for_now;
    for (std::size_t why = 0; why < protocol::kPins; ++why) now.pinned_bytes[why] += pinned.by[why];
    now.process_bytes += pinned.rest();
    now.native_bytes += fixed - for_now - pinned.all;
    if (mode == protocol::MemoryMode::kSwap) {
      now.resident_bytes += bytes(page.resident_bytes);
    } else {
      now.resident_bytes += fixed;
      now.all_resident_known = now.all_resident_known && fixed == allocated;
    }
  }
}

// Applies the settings. With an error nothing has changed.
Result<bool> Server::set_metrics(const MetricsSettings& settings) {
  if (settings.listen.empty() && settings.textfile.empty()) {
    metrics_.reset();
  } else if (metrics_ != nullptr) {
    if (const auto changed = metrics_->change(settings); !changed) return changed;
  } else {
    auto opened = MetricsServer::open(settings, [this] { asio::post(io_, [this] { want_metrics(); }); });
    if (!opened) return opened.error();
    metrics_ = std::move(*opened);
    if (!metrics_->start()) return Error{"cannot start a thread that serves metrics"};
  }
  metrics_settings_ = settings;
  return true;
}

void Server::want_metrics() {
  if (stopped_ || metrics_ == nullptr) return;
  if (!guarded("make figures", [&] { make_snapshot_for_metrics(); })) metrics_->publish(nullptr);
}

}  // namespace rota::server
