// What must hold after every step.
#include <fmt/format.h>

#include <algorithm>

#include "gangs/world.h"

namespace rota::test::gangs {

using server::GpuSet;

namespace {

// How long the drain may take when a turn ends for the gang's own sake, and how long a gang waits for all of its
// programs, as scheduler/README.md says.
constexpr Time kOwnDrain = 500ms;
constexpr Time kWaitForAll = 60s;
// For delays that no turn of another program explains: a drain that fails, a program that runs concurrently with the
// others.
constexpr Time kSlack = 20s;

// Once nothing obstructs it.
constexpr Time kToJoin = 1s;

double seconds(Time time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

// After all pages have been written.
void World::check() {
  members_.clear();
  std::array<ClientId, kGpus> holder{};
  for (const auto& [id, process] : processes_) {
    const Gang* const named = process->gang == 0 ? nullptr : gangs_.at(process->gang).get();
    check_membership(*process);
    if (std::exchange(process->was_silent, process->silent) != process->silent && process->silent) ++seen_.silent;
    for (const server::Task& task : process->tasks) {
      members_[task.id].insert(id);
      if (core_.client(task.id) == nullptr) FAIL("a task is nobody to the core");
      if (task.gang != 0 && task.gang != process->gang && !gangs_.at(task.gang)->leaving.contains(id))
        FAIL("a member of a gang that its program is not of");
      const Lease lease = lease_of(*process, task);
      for (const GpuIndex gpu : GpuSet(task.gpus)) {
        if (shown_grant(task, gpu) == 0) continue;
        if (holder.at(gpu) != 0 && holder.at(gpu) != task.id) FAIL("two hold GPU " << gpu << " that may not");
        holder.at(gpu) = task.id;
      }
      const bool joins = task.gang == 0 && !process->silent && named != nullptr && is_needed(*named);
      if (joins && lease.state.held != 0 && lease.state.waiters == 0) FAIL("one that is to join keeps what it holds");
      const GpuIndex first = *GpuSet(task.gpus).begin();
      const Rank* const shown = rank_on(*process, first);
      if (shown == nullptr || shown->gpus != task.gpus) continue;
      const std::uint32_t grant = shown_grant(task, first);
      const bool ends = grant != 0 && lease.gang_ends == grant;
      if (shown->grant != grant || shown->gang != task.gang || shown->step != lease.gang_step || shown->ends != ends) {
        FAIL("program " << id << " has not been told: it is shown grant " << shown->grant << " of gang " << shown->gang
                        << " in step " << shown->step << ", ends " << shown->ends << ", and has grant " << grant
                        << " of gang " << task.gang << " in step " << lease.gang_step << ", ends " << ends);
      }
      const bool works = shown->finished != shown->made || shown->inside || shown->machine.gate_open();
      if (ends && works && !process->liar && !process->dead) FAIL("a gang is over, and a member of it works");
    }
  }
  for (const auto& [number, gang] : gangs_) check_gang(*gang);
  for (auto& [key, size] : sizes_) {
    size.were_there = size.were_there || all_there(size);
  }
}

// It is of the gang that it has named or, if links may move it, of that of those with which it is connected.
void World::check_membership(const Process& process) {
  for (const auto& [number, gang] : gangs_) {
    if (gang->clients.contains(process.id) != (number == process.gang)) FAIL("a program of another gang");
    if (gang->named.contains(process.id) != (number == process.named)) FAIL("a program that has named another gang");
  }
  std::uint32_t of_members = 0;
  for (const server::Task& task : process.tasks) {
    if (task.gang != 0 && of_members != 0 && task.gang != of_members) FAIL("a program has members of two gangs");
    of_members = std::max(of_members, task.gang);
  }
  if (!may_be_moved(process) && process.gang != process.named) FAIL("a program is not of the gang that it has named");
  const std::set<ClientId> together = connected_with(process);
  for (const ClientId id : together) {
    if (processes_.at(id)->gang != process.gang) FAIL("programs that are connected are of two gangs");
  }
  if (process.linked.empty() && together.size() == 1 && process.gang != process.named)
    FAIL("a program that is linked to none is not of its own gang");
}

// Whether all of its programs have come to a GPU.
bool World::all_there(const Size& size) const {
  const auto come = std::ranges::count_if(size.programs, [&](ClientId id) {
    const auto found = processes_.find(id);
    return found != processes_.end() && !found->second->gpus().empty();
  });
  return come >= size.said;
}

// Either all members hold or none, except those that have given back; and they belong to one user.
void World::check_gang(const Gang& gang) {
  std::uint32_t held = 0;
  std::vector<std::pair<const Process*, const server::Task*>> members;
  for_each_member(gang, [&](const server::Program& program, const server::Task& task) {
    members.emplace_back(static_cast<const Process*>(&program), &task);
    const std::uint32_t grant = shown_grant(task, *GpuSet(task.gpus).begin());
    if (grant != 0 && held != 0 && grant != held) FAIL("members of a gang hold different grants");
    held = std::max(held, grant);
  });
  for (const auto& [process, task] : members) {
    if (process->domain != members.front().first->domain) FAIL("users share a gang");
    const bool holds = shown_grant(*task, *GpuSet(task->gpus).begin()) != 0;
    if (held == 0 || holds || process->liar) continue;
    if (!gave_back(*process, *task, held))
      FAIL("half of gang " << gang.number << " is granted, and program " << process->id << " holds nothing\n"
                           << who_has_what());
  }
  if (std::exchange(apart_[gang.number], gang.apart_until) != gang.apart_until) {
    ++(gang.apart == protocol::GangApart::kNoRoom ? seen_.crowded : seen_.apart);
  }
  const scheduler::ClientState* const state = core_.client(gang.id);
  if (state == nullptr || state->grant == 0 || !gang.drain.drains()) {
    drains_.erase(gang.number);
  } else if (drains_[gang.number].first != state->grant) {
    drains_[gang.number] = {state->grant, now_};
  }
}

// On any of its GPUs: a process that is to use them one by one says so with its next want.
bool World::gave_back(const Process& process, const server::Task& task, std::uint32_t grant) {
  bool any = false;
  for (const GpuIndex gpu : GpuSet(task.gpus)) any = any || process.given_back.at(gpu) == grant;
  return any;
}

void World::check_granted(const scheduler::Decision& decision) {
  if (const auto number = gangs_in_core_.find(decision.client); number != gangs_in_core_.end()) {
    ++seen_.gang_grants;
    const Gang& gang = *gangs_.at(number->second);
    if (!gang.clients.empty() && !program(*gang.clients.begin())->linked.empty()) ++seen_.linked_grants;
    // Without names it has no size, or will end once rotad has memory.
    if (gang.named.empty() || !sizes_.contains(gang.key)) return;
    Size& size = sizes_.at(gang.key);
    if (all_there(size) || size.were_there) return;
    if (now_ - size.since < kWaitForAll)
      FAIL("a gang begins without all of its programs\n"
           << gang.key << ": " << size.programs.size() << " of " << size.said << ", since " << seconds(size.since)
           << "\n"
           << who_has_what());
    ++seen_.short_of;
    return;
  }
  // Its task may be about to become another client, or could not become one because memory was refused.
  if (checking_gangs_ || coupling_ || memory_lacks_) return;
  const auto [program, task] = find_task(decision.client);
  if (program != nullptr && !static_cast<Process*>(program)->liar && is_to_join(*program, *task))
    FAIL("program " << program->id << " is to join and is granted GPUs by itself\n" << who_has_what());
}

// When a client of the core ends, no grant is lost that a living program has been told of. (The client that its task
// was until now may have been granted GPUs for a moment, because of its place in the queue.)
void World::check_left(ClientId client) {
  const auto granted = granted_.find(client);
  if (granted == granted_.end()) return;
  for (const ClientId id : members_[client]) {
    const auto found = processes_.find(id);
    if (found == processes_.end() || found->second->dead) continue;
    for (const auto& rank : found->second->ranks) {
      if (rank->holder == client && rank->grant == granted->second) FAIL("a grant is taken from a living program");
    }
  }
}

// A grant is given back only if those who hold it say so, or if the gang has drained for too long for its own sake.
void World::check_gave_back(const scheduler::event::GiveBack& given) {
  const auto granted = granted_.find(given.client);
  if (granted == granted_.end() || granted->second != given.grant) return;
  bool all = true;
  for (const ClientId id : members_[given.client]) {
    const auto found = processes_.find(id);
    if (found == processes_.end() || found->second->dead || found->second->liar) continue;
    for (const server::Task& task : found->second->tasks) {
      if (task.id == given.client) all = all && gave_back(*found->second, task, given.grant);
    }
  }
  const auto gang = gangs_in_core_.find(given.client);
  if (gang == gangs_in_core_.end()) {
    if (!all) FAIL("a grant goes back that its program has not given back");
    return;
  }
  ++(all ? seen_.drained : seen_.futile);
  const auto drain = drains_.find(gang->second);
  const bool long_enough =
      drain != drains_.end() && drain->second.first == given.grant && now_ - drain->second.second >= kOwnDrain;
  if (!all && !long_enough) FAIL("a gang's grant goes back, and not all of its members have given it back");
}

// Nobody waits forever at its gate, or to become a member.
void World::check_waits() {
  for (const auto& [id, process] : processes_) {
    for (const server::Task& task : process->tasks) {
      const bool due = is_to_join(*process, task) && !holds(task) && !holds(*gangs_.at(process->gang));
      if (!due || now_ < no_memory_until_) {
        joins_since_.erase(task.id);
      } else if (now_ - joins_since_.emplace(task.id, now_).first->second > kToJoin) {
        FAIL("program " << id << " does not become a member of its gang\n" << who_has_what());
      }
    }
  }
  std::size_t ranks = 0;
  for_each_rank([&](const Process&, const Rank&) { ++ranks; });
  most_ranks_ = std::max(most_ranks_, ranks);
  for_each_rank([&](const Process& process, const Rank& rank) {
    if (process.dead || process.liar || rank.stands_since == kNever) return;
    Time since = std::max(rank.stands_since, process.stopped_until);
    const auto size = process.named == 0 ? sizes_.end() : sizes_.find(gangs_.at(process.named)->key);
    if (size != sizes_.end() && size->second.said > 1) since = std::max(since, size->second.since + kWaitForAll);
    if (now_ <= since) return;
    seen_.longest_wait = std::max(seen_.longest_wait, now_ - since);
    if (now_ - since > longest_wait_allowed()) {
      FAIL("program " << process.id << " waits at its gate for ever, since " << seconds(since) << " s, on GPUs "
                      << rank.gpus << "\n"
                      << who_has_what());
    }
  });
}

std::string World::who_has_what() const {
  std::string text = fmt::format("at {:.6f} s:\n", seconds(now_));
  for_each_rank([&](const Process& process, const Rank& rank) {
    text += fmt::format(
        "program {}{}{}{} of {}'s job '{}' on {:#x}: phase {}, gate {}, gave back {}, {} of {} calls, {} kernels "
        "done{}{}",
        process.id, process.liar ? " (lies)" : "", process.dead ? " (dead)" : "",
        process.stopped_until > now_ ? " (stopped)" : "", process.domain.key(), process.job, rank.gpus,
        static_cast<int>(rank.machine.phase()), rank.machine.gate_open() ? "open" : "closed",
        process.given_back[*GpuSet(rank.gpus).begin()], rank.made, rank.to_make, rank.finished,
        rank.inside ? ", inside" : "", process.regroups ? ", regroups" : "");
    for (const server::Task& task : process.tasks) {
      if ((task.gpus & rank.gpus) == 0) continue;
      const scheduler::ClientState state = state_of(task);
      text += fmt::format(
          "; task {} of gang {} with {:#x}{}{}: holds {:#x}, wants {:#x}, grant {}, waiters {}, drain at {:.6f}",
          task.id, task.gang, task.gpus, task.wants ? " wants" : "", task.gave_back ? " gave back" : "", state.held,
          state.wanted, state.grant, state.waiters, seconds(state.drain_at));
    }
    text += "\n";
  });
  for (const auto& [number, gang] : gangs_) {
    text += fmt::format("gang {} ({}) of {} programs, {} said: {}{}step {}{}\n", number, gang->id, gang->clients.size(),
                        gang->size, is_apart(*gang) ? "apart, " : "", gang->must_end ? "must end, " : "",
                        gang->drain.step(), gang->drain.ended() ? ", over" : "");
  }
  return text;
}

// Each of the others has turns, which end by force.
Time World::longest_wait_allowed() const {
  const scheduler::Settings& settings = core_.settings();
  return kSlack + 3 * static_cast<int>(most_ranks_) * (settings.quantum + settings.grace);
}

void World::everybody_gets_a_turn() {
  surprise_at_ = kNever;
  for (const auto& [id, process] : processes_) process->stopped_until = std::min(process->stopped_until, now_);
  const Time begun = now_;
  std::set<const Rank*> waits;
  for_each_rank([&](const Process& process, const Rank& rank) {
    if (!process.dead && !process.liar && rank.made < rank.to_make) waits.insert(&rank);
  });
  std::map<const Rank*, long> before;
  for (const Rank* const rank : waits) before[rank] = rank->made;
  while (!waits.empty()) {
    run(100ms, false);
    std::set<const Rank*> there;
    for_each_rank([&](const Process& process, const Rank& rank) {
      if (!process.dead && rank.made == before[&rank]) there.insert(&rank);
    });
    std::erase_if(waits, [&](const Rank* rank) { return !there.contains(rank); });
    if (now_ - begun > 10 * longest_wait_allowed()) FAIL("somebody never gets a turn\n" << who_has_what());
  }
}

void World::everybody_leaves() {
  surprise_at_ = kNever;
  while (!processes_.empty()) {
    for (const auto& [id, process] : processes_) {
      if (one_in(20)) die(*process);
    }
    advance(now_ + 50ms);
  }
  CHECK(gangs_.empty());
  CHECK(gang_numbers_.empty());
  CHECK(gangs_in_core_.empty());
  CHECK(gangs_due_.empty());
  CHECK(owners_.empty());
  CHECK(checks_.empty());
  for (GpuIndex gpu = 0; gpu < kGpus; ++gpu) {
    const scheduler::GpuState state = core_.gpu(gpu);
    CHECK(state.clients + state.holders + state.waiters == 0);
    CHECK(state.used + state.contexts == 0);
  }
  for (ClientId id = 1; id <= last_number_; ++id) {
    if (core_.client(id) != nullptr) FAIL("the core still knows client " << id);
  }
}

}  // namespace rota::test::gangs
