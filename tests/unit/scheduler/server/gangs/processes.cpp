// What processes do, and what happens to them.
#include <algorithm>
#include <cstring>

#include "gangs/world.h"
#include "scheduler/protocol/pages.h"

namespace rota::test::gangs {

using server::GpuSet;
using turn::Act;

namespace {

constexpr long kAlways = 1L << 60;  // calls
constexpr std::size_t kMostProcesses = 10;

}  // namespace

// --- they come

Process& World::add(const std::string& job, uid_t user, const std::vector<GpuMask>& ranks) {
  auto made = std::make_unique<Process>();
  Process& process = *made;
  process.id = ++last_number_;
  process.pid = ++last_pid_;
  process.name = "rank";
  process.domain = server::TrustDomain(user);
  process.domain_number = user;
  process.job = job;
  process.used = kTotal * 6 / 10;
  processes_.emplace(process.id, std::move(made));
  for (const GpuMask gpus : ranks) {
    add_rank(process, gpus);
    for (const GpuIndex gpu : GpuSet(gpus)) {
      send(process, [this, gpu](Process& now) {
        begin_task(now, gpu);
        say_gpu(now, gpu, kTotal, 1);
        heard(now);
        publish_changes(now_);
      });
    }
  }
  return process;
}

void World::add_rank(Process& process, GpuMask gpus) {
  process.ranks.push_back(std::make_unique<Rank>());
  Rank& rank = *process.ranks.back();
  rank.gpus = gpus;
  rank.enters = rank.look_at = now_ + some_time(20ms);
  // It joins in the call at which the others are.
  long made = kAlways;
  for_each_rank([&](const Process& other, const Rank& its) {
    if (&its != &rank && !other.dead && other.job == process.job) made = std::min(made, its.made);
  });
  rank.made = rank.finished = rank.left = rank.to_make = made == kAlways ? 0 : made;
  read_page(process, rank);
  feed(process, rank, turn::event::Gpus{.any = true, .answered = true, .served = gpus});
}

void World::name_gang(Process& process, std::uint32_t size) {
  protocol::Gang named{};
  strncpy(named.name, process.job.c_str(), sizeof named.name - 1);
  named.size = size;
  named.why = size <= 1 && one_in(2) ? protocol::GangWhy::kMemory : protocol::GangWhy::kNamed;
  send(process, [this, named](Process& now) {
    Leases::heard(now);
    if (now.named != 0) return on_gang(now, named);
    const std::string key = now.domain.key() + "\n" + named.name;
    Size& known = sizes_[key];
    if (known.programs.empty()) known.since = now_;
    known.programs.insert(now.id);
    known.said = std::max(known.said, std::min<std::uint32_t>(named.size, protocol::kMostInGang));
    on_gang(now, named);
  });
}

void World::add_job(const std::string& job, const std::vector<GpuMask>& ranks) {
  for (const GpuMask gpus : ranks) {
    Process& process = add(job, 1000, {gpus});
    process.ranks.front()->to_make = kAlways;
    name_gang(process, static_cast<std::uint32_t>(ranks.size()));
  }
}

void World::populate() {
  for (unsigned i = 2 + pick(6); i > 0; --i) some_process();
}

void World::some_process() {
  // Two users use the same names of jobs.
  const std::string job = one_in(3) ? "" : one_in(2) ? "train" : "eval";
  std::vector<GpuMask> ranks{scheduler::bit(pick(kGpus))};
  if (one_in(3)) ranks.push_back(scheduler::bit(pick(kGpus)));
  if (ranks.size() == 2 && ranks[0] == ranks[1]) ranks.pop_back();
  Process& process = add(job, 1000 + pick(2), ranks);
  process.waits_for_others = !job.empty() && !one_in(3);
  process.liar = one_in(8);
  process.regroups = ranks.size() > 1 && !process.waits_for_others && one_in(2);
  if (one_in(4)) process.resident = process.used;  // it swaps
  const bool busy = one_in(2);
  for (const auto& rank : process.ranks) rank->to_make = busy ? kAlways : rank->made + pick(50);
  if (job.empty()) return;
  // Some report the size late, as those do that find it out by themselves.
  constexpr std::uint32_t kSizes[] = {0, 0, 0, 2, 2, 3, 40, 100000};
  due_.emplace(now_ + (one_in(2) ? Time{1} : some_time(2s)), [this, id = process.id, size = kSizes[pick(8)]] {
    if (const auto found = processes_.find(id); found != processes_.end() && !found->second->dead) {
      name_gang(*found->second, size);
    }
  });
}

// --- what befalls them

void World::surprise() {
  if (memory_lacks_ && one_in(20)) no_memory_until_ = now_ + some_time(2s);
  if (processes_.size() < kMostProcesses && one_in(4)) some_process();
  if (processes_.empty()) return;
  auto which = processes_.begin();
  std::advance(which, pick(static_cast<unsigned>(processes_.size())));
  Process& process = *which->second;
  if (process.dead) return;
  if (process.liar && !one_in(4)) return lie(process);
  befalls(process);
}

void World::befalls(Process& process) {
  switch (pick(16)) {
    case 0:
      return die(process);
    case 1:
      process.stopped_until = std::max(process.stopped_until, now_ + some_time(one_in(3) ? 5s : 300ms));
      return;
    case 2:
      if (process.waits_for_others) return;
      if (process.ranks.size() > 1 || std::popcount(process.ranks[0]->gpus) > 1) process.regroups = true;
      return;
    case 3:  // a program whose memory does not fit together with that of another member
      if (process.resident == 0) return;
      process.lacking = process.lacking != 0 ? 0 : kTotal / 2;
      ++process.refusals;
      return send(process, [this](Process& now) {
        heard(now);
        publish_changes(now_);
      });
    case 4:  // once more, under another name
      if (process.job.empty()) return;
      return send(process, [this](Process& now) {
        protocol::Gang again{};
        strncpy(again.name, "another", sizeof again.name - 1);
        if (now.named != 0) on_gang(now, again);
      });
    case 5:
    case 6:
      return open_or_close(process);
    default:
      for (const auto& rank : process.ranks) {
        if (rank->to_make < kAlways && rank->made >= rank->to_make) rank->to_make += 1 + pick(40);
      }
  }
}

// It opens memory of another program, or closes all that it has open of one.
void World::open_or_close(Process& process) {
  auto which = processes_.begin();
  std::advance(which, pick(static_cast<unsigned>(processes_.size())));
  const bool closes = one_in(2);
  send(process, [this, id = which->first, closes](Process& now) {
    const auto other = processes_.find(closes && !now.linked.empty() ? *now.linked.begin() : id);
    if (other == processes_.end() || other->first == now.id || other->second->domain != now.domain) return;
    heard(now);
    const bool open = now.linked.contains(other->first);
    if (!open) link_programs(now, *other->second);
    if (open && closes) unlink_programs(now, *other->second);
  });
}

void World::lie(Process& process) {
  Rank& rank = *process.ranks[pick(static_cast<unsigned>(process.ranks.size()))];
  switch (pick(5)) {
    case 0: {
      const protocol::Want want{.gpus = pick(1U << kGpus),
                                .running = pick(2),
                                .padding = 0,
                                .urgent = pick(2),
                                .alone = pick(2),
                                .task = pick(1U << kGpus)};
      return send(process, [this, want](Process& now) {
        heard(now);
        on_want(now, want, false);
      });
    }
    case 1: {
      const std::uint32_t grant = one_in(2) ? rank.grant : pick(5);
      const auto gpu = static_cast<GpuIndex>(pick(kGpus));
      return send(process, [this, grant, gpu](Process& now) {
        heard(now);
        on_give_back(now, {.grant = grant, .gpu = gpu, .task = 0});
      });
    }
    case 2:
      return name_gang(process, pick(300));
    default:
      rank.told = std::uint64_t{one_in(2) ? rank.step : pick(20)} << 32 | pick(8);
      return send(process, [this](Process& now) {
        heard(now);
        publish_changes(now_);
      });
  }
}

// --- what they do

void World::act(Process& process, Rank& rank) {
  if (process.dead) return;
  work(process, rank);
  if (process.stopped_until > now_) return;
  call(process, rank);
  if (rank.look_at <= now_) look(process, rank);
}

// Whether this kernel can finish: all other ranks of its job that have to make that call have made it.
bool World::is_over(const Process& process, const Rank& rank, long kernel) const {
  if (!process.waits_for_others || kernel % 3 != 0) return true;
  bool over = true;
  for_each_rank([&](const Process& other, const Rank& its) {
    if (its.made > kernel || its.to_make <= kernel || &its == &rank || other.dead || !other.waits_for_others) return;
    over = over && !(other.job == process.job && other.domain == process.domain);
  });
  return over;
}

void World::work(Process& process, Rank& rank) {
  if (process.dead) return;
  while (rank.finished < rank.made && rank.busy_until <= now_ && is_over(process, rank, rank.finished)) {
    ++rank.finished;
    rank.busy_until = now_ + some_time(20ms);
    rank.look_at = std::min(rank.look_at, std::max(now_ + 20us, rank.machine.look_at()));
  }
}

void World::call(Process& process, Rank& rank) {
  if (rank.inside) {
    if (rank.waits ? rank.finished < rank.made : now_ < rank.leaves) return;
    rank.inside = false;
    ++rank.left;
    if (!rank.waits) ++rank.made;
    rank.enters = now_ + some_time(one_in(100) ? 50ms : 10ms);
    return;
  }
  if (rank.made >= rank.to_make || now_ < rank.enters) return;
  if (!rank.machine.gate_open() && !rank.let_in) {
    if (rank.stands_since != kNever) return;
    rank.stands_since = now_;
    rank.look_at = std::min(rank.look_at, now_ + 10us);
    return;
  }
  if (rank.let_in && !rank.machine.gate_open()) ++seen_.admitted;
  if (!rank.machine.gate_open()) rank.let_in = false;
  rank.stands_since = kNever;
  rank.inside = true;
  rank.leaves = now_ + some_time(1ms);
  rank.waits = one_in(4);
  if (rank.waits) ++rank.made;
}

void World::look(Process& process, Rank& rank) {
  turn::event::Look seen;
  for (const GpuIndex gpu : GpuSet(rank.gpus)) {
    const server::Task* const task = process.tasks.on(gpu);
    if (task == nullptr) continue;
    const Lease lease = lease_of(process, *task);
    const std::uint32_t grant = shown_grant(*task, gpu);
    seen.lease.waiters = std::max(seen.lease.waiters, lease.state.waiters);
    seen.lease.drain_at = std::max(seen.lease.drain_at, lease.state.drain_at);
    seen.lease.give_back_by = std::max(seen.lease.give_back_by, lease.give_back_by);
    if (grant == 0 || (seen.lease.grant != 0 && grant != seen.lease.grant)) continue;
    seen.lease.grant = grant;
    seen.lease.held |= scheduler::bit(gpu);
    seen.lease.gang = std::max(seen.lease.gang, task->gang);
    seen.lease.step = std::max(seen.lease.step, lease.gang_step);
    seen.lease.ends |= lease.gang_ends == grant;
  }
  seen.calls = static_cast<std::uint64_t>(rank.left);
  seen.inside = rank.inside || rank.let_in ? 1 : 0;
  seen.standing = rank.stands_since != kNever ? 1 : 0;
  seen.looked = rank.machine.watches_gpu();
  seen.done = rank.finished >= rank.marked;
  seen.reached = static_cast<std::uint64_t>(rank.finished);
  feed(process, rank, seen);
}

void World::feed(Process& process, Rank& rank, const turn::Event& event) {
  std::deque<turn::Event> due{event};
  for (; !due.empty(); due.pop_front()) {
    const std::vector<turn::Action> actions = rank.machine.step(due.front(), now_);
    for (const turn::Action& action : actions) {
      switch (action.act) {
        case Act::kAdmit:
          rank.let_in = true;
          break;
        case Act::kClose:
        case Act::kDismiss:
          rank.let_in = false;
          break;
        case Act::kReport:
          if (!process.liar) rank.told = action.word;
          send(process, [this](Process& now) {
            heard(now);
            publish_changes(now_);
          });
          break;
        case Act::kMark:
          rank.marked = rank.made;
          due.push_back(turn::event::MarkMade{turn::Marked::kYes});
          break;
        case Act::kBringBack:
          due.push_back(turn::event::Brought{.resident = true});
          break;
        case Act::kWant:
          send(process, [this, want = protocol::Want{.gpus = action.gpus,
                                                     .running = action.running ? 1U : 0U,
                                                     .padding = 0,
                                                     .urgent = action.urgent ? 1U : 0U,
                                                     .alone = 0,
                                                     .task = rank.gpus}](Process& now) {
            heard(now);
            on_want(now, want, false);
          });
          break;
        case Act::kGiveBack:
          for (const GpuIndex gpu : GpuSet(rank.gpus)) process.given_back.at(gpu) = action.grant;
          send(process,
               [this, given = protocol::GiveBack{
                          .grant = action.grant, .gpu = *GpuSet(rank.gpus).begin(), .task = rank.gpus}](Process& now) {
                 heard(now);
                 on_give_back(now, given);
               });
          break;
        default:
          break;
      }
    }
  }
  rank.look_at = std::max(rank.machine.look_at(), now_ + 20us);
}

// As a monitor does it: its tasks retire first, and others take their places.
void World::regroup(Process& process) {
  bool rest = true;
  for (const auto& rank : process.ranks) {
    if (!rank->machine.retires()) feed(process, *rank, turn::event::Retire{});
    rest = rest && rank->machine.rests() && rank->grant == 0 && !rank->inside && rank->finished == rank->made;
  }
  if (!rest || process.sent_until >= now_) return;
  process.regroups = false;
  GpuMask all = 0;
  for (const auto& rank : process.ranks) all |= rank->gpus;
  const bool together = process.ranks.size() > 1;
  const long to_make = process.ranks.front()->to_make;
  process.ranks.clear();
  if (together) add_rank(process, all);
  for (const GpuIndex gpu : GpuSet(together ? 0 : all)) add_rank(process, scheduler::bit(gpu));
  for (const auto& rank : process.ranks) rank->to_make = std::max(rank->made, to_make);
}

}  // namespace rota::test::gangs
