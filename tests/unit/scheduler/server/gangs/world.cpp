// How the world proceeds: rotad's part, and time.
#include "gangs/world.h"

#include <algorithm>

#include "scheduler/protocol/pages.h"

namespace rota::test::gangs {

namespace event = scheduler::event;
using server::GpuSet;

// --- what leases need

server::Program* World::program(ClientId id) const {
  const auto found = processes_.find(id);
  return found == processes_.end() ? nullptr : found->second.get();
}

event::Usage World::usage_of(const server::Program& program, GpuIndex gpu) const {
  const auto& process = static_cast<const Process&>(program);
  return {.client = 0,
          .gpu = gpu,
          .used = process.used,
          .resident = process.resident,
          .shortage = process.lacking,
          .refusals = process.refusals};
}

const Rank* World::rank_on(const Process& process, GpuIndex gpu) const {
  for (const auto& rank : process.ranks) {
    if (scheduler::has(rank->gpus, gpu)) return rank.get();
  }
  return nullptr;
}

scheduler::GangDrain::Word World::rest_of(const server::Program& program, const server::Task& task) const {
  const Rank* const rank = rank_on(static_cast<const Process&>(program), *GpuSet(task.gpus).begin());
  return scheduler::GangDrain::word_of(rank == nullptr ? 0 : rank->told);
}

void World::stepped(const scheduler::Event& event, Time, const std::vector<scheduler::Decision>& decisions) {
  ++seen_.steps;
  if (const auto* given = std::get_if<event::GiveBack>(&event)) check_gave_back(*given);
  if (const auto* left = std::get_if<event::Leave>(&event)) {
    check_left(left->client);
    granted_.erase(left->client);
    members_.erase(left->client);
  }
  for (const scheduler::Decision& decision : decisions) {
    if (decision.change == scheduler::Change::kGranted) {
      ++seen_.grants;
      check_granted(decision);
      granted_[decision.client] = decision.grant;
    }
    if (decision.change == scheduler::Change::kRevoked) ++seen_.revoked;
    if (decision.change == scheduler::Change::kRevoked || decision.change == scheduler::Change::kEnded) {
      granted_.erase(decision.client);
    }
  }
}

// rotad's pages are shared memory: what is written is visible at once, and a process that waits for it wakes a little
// later.
void World::publish_all(Time) {
  for (const ClientId id : changed_) {
    const auto found = processes_.find(id);
    if (found == processes_.end()) continue;
    Process& process = *found->second;
    for (const auto& rank : process.ranks) {
      read_page(process, *rank);
      rank->look_at = std::min(rank->look_at, now_ + 10us + some_time(200us));
    }
  }
  changed_.clear();
  check();
}

void World::read_page(const Process& process, Rank& rank) const {
  const GpuIndex first = *GpuSet(rank.gpus).begin();
  const server::Task* const task = process.tasks.on(first);
  if (task == nullptr) return;
  const Lease lease = lease_of(process, *task);
  rank.grant = shown_grant(*task, first);
  rank.gang = task->gang;
  rank.holder = task->id;
  rank.step = lease.gang_step;
  rank.ends = rank.grant != 0 && lease.gang_ends == rank.grant;
}

// --- time

Time World::some_time(Time most) {
  const Time part = most / (1U << pick(10));
  return Time(std::uniform_int_distribution<std::int64_t>(1, std::max<std::int64_t>(part.count(), 1))(random_));
}

Time World::when(const Process& process, const Rank& rank) const {
  if (process.dead) return kNever;
  // A kernel that waits for others' is checked whenever any rank has acted.
  Time at = rank.finished < rank.made && rank.busy_until > now_ ? rank.busy_until : kNever;
  if (process.stopped_until > now_) return std::min(at, process.stopped_until);
  at = std::min(at, rank.look_at);
  if (rank.inside) return std::min(at, rank.waits ? kNever : rank.leaves);
  if (rank.made < rank.to_make && (rank.machine.gate_open() || rank.let_in)) at = std::min(at, rank.enters);
  if (rank.made < rank.to_make && rank.stands_since == kNever) at = std::min(at, rank.enters);
  return at;
}

void World::run(Time length, bool surprises) {
  surprise_at_ = surprises ? now_ : kNever;
  for (const Time end = now_ + length; now_ < end;) advance(end);
}

void World::advance(Time end) {
  Time next = std::min(end, surprise_at_);
  for_each_rank([&](const Process& process, const Rank& rank) { next = std::min(next, when(process, rank)); });
  if (!due_.empty()) next = std::min(next, due_.begin()->first);
  if (const auto at = core_.next_deadline()) next = std::min(next, *at);
  if (const auto at = next_check()) next = std::min(next, *at);
  next = std::max(next, now_);
  for_each_rank([&](const Process&, const Rank& rank) {
    if (rank.grant == 0) return;
    seen_.held += std::chrono::duration<double>(next - now_).count() * std::popcount(rank.gpus);
  });
  now_ = next;
  while (!due_.empty() && due_.begin()->first <= now_) {
    const auto now_due = due_.extract(due_.begin());
    now_due.mapped()();
  }
  check_if_due();
  if (const auto at = core_.next_deadline(); at && *at <= now_) step(event::Tick{});
  if (surprise_at_ <= now_) {
    surprise();
    surprise_at_ = now_ + some_time(100ms);
  }
  std::vector<std::pair<Process*, Rank*>> ready;
  for_each_rank([&](Process& process, Rank& rank) {
    if (when(process, rank) <= now_ || rank.finished < rank.made) ready.emplace_back(&process, &rank);
  });
  for (const auto& [process, rank] : ready) act(*process, *rank);
  for (const auto& [process, rank] : ready) work(*process, *rank);
  for (const auto& [id, process] : processes_) {
    if (!process->dead && process->stopped_until <= now_ && process->regroups) regroup(*process);
  }
  if (now_ < waits_checked_at_ + 10ms) return;
  waits_checked_at_ = now_;
  check_waits();
}

// --- messages

void World::send(Process& process, std::function<void(Process&)> message) {
  process.sent_until = std::max(process.sent_until, now_) + 1us + some_time(300us);
  due_.emplace(process.sent_until, [this, id = process.id, message = std::move(message)] {
    // What the dead have sent is read first.
    if (const auto found = processes_.find(id); found != processes_.end()) message(*found->second);
  });
}

// As rotad does after every message that concerns leases.
void World::heard(Process& process) {
  Leases::heard(process);
  for (const GpuIndex gpu : process.gpus()) tell_usage(process, gpu);
  if (process.gang != 0) gangs_due_.insert(process.gang);
}

void World::die(Process& process) {
  if (process.dead) return;
  process.dead = true;
  ++seen_.died;
  due_.emplace(std::max(process.sent_until, now_) + some_time(1ms), [this, id = process.id] { remove(id); });
}

void World::remove(ClientId id) {
  auto entry = processes_.extract(id);
  if (entry.empty()) return;
  for (auto& [key, size] : sizes_) size.programs.erase(id);
  std::erase_if(sizes_, [](const auto& size) { return size.second.programs.empty(); });
  end_tasks(*entry.mapped());
}

}  // namespace rota::test::gangs
