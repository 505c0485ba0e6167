// Forms gangs of the tasks of their programs (gang_membership.cpp), and ends their turns.
#include "scheduler/server/gangs.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "scheduler/protocol/pages.h"
#include "scheduler/server/log.h"

namespace rota::server {

using scheduler::Bytes;
using scheduler::ClientId;
using scheduler::GangDrain;
using scheduler::GpuIndex;
using scheduler::GpuMask;
namespace event = scheduler::event;

namespace {

// How long the first members of a gang wait for the others, if it is known how many there are.
constexpr std::chrono::seconds kWaitForAll{60};
// The same for a gang whose programs had all come under an earlier rotad: they reconnect at once.
constexpr std::chrono::seconds kWaitForReturn{1};
// After this many turns in a row that had to be revoked, the members take turns by themselves for kApart: their work
// waits for something that rotad does not see. Judgments.
constexpr unsigned kMostRevoked = 3;
// How long the turn of a gang, or of a program that is to join one, is drained if it ends for the gang's own sake: its
// work may wait for a program that is to join or has given back already. A judgment.
constexpr std::chrono::milliseconds kOwnDrain{500};
constexpr std::chrono::minutes kApart{10};
// How long after rotad had no memory for other members it tries again, at the latest. A judgment.
constexpr std::chrono::milliseconds kTriesAgain{250};
// How much of a drain counts as part of the hand-over. The longer hand-overs take, the longer turns are, so a gang's
// drain must not add much to the turns of others. A judgment.
constexpr std::chrono::milliseconds kLongestCounted{10};

}  // namespace

void Leases::for_each_task_of(ClientId id, const std::function<void(Program&, Task&)>& visit) const {
  if (const auto gang = gangs_in_core_.find(id); gang != gangs_in_core_.end()) {
    return for_each_member(*gangs_.at(gang->second), visit);
  }
  if (const auto [client, task] = find_task(id); task != nullptr) visit(*client, *task);
}

// ---- its members

// Takes a client out of its gang while its GPUs become other tasks. False: the gang holds a grant, which ends first.
bool Leases::leave_gang_to_couple(Program& client) {
  const auto member = std::ranges::find_if(client.tasks, [](const Task& task) { return task.gang != 0; });
  const auto found = gangs_.find(member != client.tasks.end() ? member->gang : client.gang);
  if (found == gangs_.end()) return true;
  Gang& gang = *found->second;
  gangs_due_.insert({gang.number, client.gang});  // the new tasks are members again at once
  if (gang.must_end = holds(gang); gang.must_end) return false;
  std::vector<OfTask> others;
  for_each_member(gang, [&](Program& other, Task& task) {
    if (other.id != client.id) others.push_back({&other, &task});
  });
  if (gang.id != 0) rebuild(gang, others);
  return true;
}

Leases::Gang* Leases::gang_of(const Task& task) const {
  const auto found = gangs_.find(task.gang);
  return task.gang == 0 || found == gangs_.end() ? nullptr : found->second.get();
}

bool Leases::holds(const Gang& gang) const {
  const scheduler::ClientState* const state = core_.client(gang.id);
  return state != nullptr && state->held != 0;
}

// After each step: checks the gangs that it concerned.
void Leases::check_gangs() {
  if (checking_gangs_ || gangs_due_.empty()) return;
  const Within checking(checking_gangs_);
  while (!gangs_due_.empty()) {
    const auto found = gangs_.find(*gangs_due_.begin());
    gangs_due_.erase(gangs_due_.begin());
    if (found == gangs_.end()) continue;
    Gang& gang = *found->second;
    part_if_overcommitted(gang);
    form(gang);
    check(gang);
    if (!gang.named.empty() || !gang.clients.empty() || gang.id != 0) continue;
    const auto of_key = gang_numbers_.find(gang.key);
    if (of_key != gang_numbers_.end() && of_key->second == gang.number) gang_numbers_.erase(of_key);
    checks_.erase({gang.check_at, gang.number});
    gangs_.erase(found);
  }
}

// Whether the task is to be a member and holds a grant of its own: it is asked to give that back.
bool Leases::is_to_join(const Program& client, const Task& task) const {
  const auto gang = gangs_.find(client.gang);
  return task.gang == 0 && !client.silent && gang != gangs_.end() && is_needed(*gang->second);
}

// Whether the tasks of the gang's clients are to be its members. A single client needs no gang, unless others are known
// to come: then it does not begin without them.
bool Leases::is_needed(const Gang& gang) const {
  const bool others_come = !gang.whole && gang.size > 1;
  const auto takes_part = [&](ClientId id) {
    const Program* const client = program(id);
    return client != nullptr && !client->silent;
  };
  return (others_come || std::ranges::count_if(gang.clients, takes_part) > 1) && !is_apart(gang);
}

bool Leases::is_apart(const Gang& gang) const {
  return now() < gang.apart_until;
}

bool Leases::waits_for_gang(const Task& member) const {
  if (member.gang == 0 || !member.wants) return false;
  const scheduler::ClientState state = state_of(member);
  return state.wanted == 0 && (state.held == 0 || member.gave_back);
}

bool Leases::any_waits(const Gang& gang, GpuIndex gpu) const {
  bool any = false;
  for_each_member(gang, [&](const Program&, const Task& task) {
    any = any || (scheduler::has(task.gpus, gpu) && waits_for_gang(task));
  });
  return any;
}

// Asks a task to give back what it holds, within this time. 0: it need not.
void Leases::withdraw(Task& task, scheduler::Time within) {
  const bool on = within != scheduler::Time{};
  if (std::exchange(task.withdrawn, on) != on) step(event::Withdraw{task.id, within});
}

// It is not to join a gang after all.
void Leases::stays_alone(Task& task) {
  withdraw(task, {});
  if (std::exchange(task.wants, false)) step(event::Want{task.id, task.gpus, false, false, false});
}

// Makes members of the tasks of the gang's clients, while nothing is held: a grant is for all or for none. All members
// that a client has are of one gang.
void Leases::form(Gang& gang) {
  let_go(gang);
  std::vector<OfTask> members;
  const bool needed = is_needed(gang);
  for (const ClientId id : gang.clients) {
    Program* const member = program(id);
    if (member == nullptr) continue;
    const bool joins = needed && !member->silent;
    const bool leaves_another = std::ranges::any_of(
        member->tasks, [&](const Task& task) { return task.gang != 0 && task.gang != gang.number; });
    for (Task& task : member->tasks) {
      if (task.gang == 0 && !joins) stays_alone(task);
      if (!joins || (task.gang != 0 && task.gang != gang.number)) continue;
      const bool holds_alone = task.gang == 0 && holds(task);
      withdraw(task, holds_alone ? kOwnDrain : scheduler::Time{});
      if (!holds_alone && !leaves_another) members.push_back({member, &task});
    }
  }
  GpuMask gpus = 0;
  bool same = true;
  for (const auto& [client, task] : members) {
    gpus |= task->gpus;
    same = same && task->gang != 0;
  }
  std::size_t before = 0;
  for_each_member(gang, [&](const Program&, const Task&) { ++before; });
  const bool unchanged = before == members.size() && gang.members == members.size();
  if (same && gpus == gang.gpus && unchanged) return;
  gang.must_end = holds(gang);
  if (!gang.must_end || (gang.clients.empty() && gang.leaving.empty())) return rebuild(gang, members);
  // Those that are to join have their first turn with the others.
  for (const auto& [client, task] : members) {
    if (task->gang != 0 || state_of(*task).wanted == 0) continue;
    begin_to_want(*task);
    step(event::Want{task->id, 0, false, false, false});
  }
}

// The core's clients cannot lose a GPU, so a new client of the core replaces the gang's. As in replace(), what the
// members have counts twice for a moment.
void Leases::rebuild(Gang& gang, const std::vector<OfTask>& members) {
  std::vector<OfTask> leaving;
  for_each_member(gang, [&](Program& client, Task& task) { leaving.push_back({&client, &task}); });
  // No step concerns a gang without programs, so it ends now.
  if (!may_grow() && !(members.empty() && leaving.empty())) return check_later(gang, kTriesAgain);
  const Within changing(coupling_);
  std::vector<ClientId> ended;
  if (gang.id != 0) ended.push_back(std::exchange(gang.id, 0));
  std::set<const Task*> remain;
  for (const OfTask& each : members) {
    remain.insert(each.task);
    gang.last_grant = std::max(gang.last_grant, each.task->last_grant);
  }
  std::erase_if(leaving, [&](const OfTask& each) { return remain.contains(each.task); });
  for (const auto& [client, task] : leaving) become_alone(*client, *task);
  let_go(gang);
  gang.gpus = 0;
  gang.members = members.size();
  if (!members.empty()) {
    gang.id = ++last_number_;
    gang.activity = {};
    remark(fmt::format("gang {} task {}", gang.number, gang.id));
    enter_core(gang.id, *members.front().program, gang.last_grant);
  }
  for (const auto& [client, task] : members) {
    const ClientId before = std::exchange(task->id, gang.id);
    for (const GpuIndex gpu : GpuSet(task->gpus)) {
      if (task->gang == 0) task->parts[gpu] = {.context = core_.context_bytes(before, gpu)};
    }
    if (task->gang == 0) {
      if (core_.client(before)->wanted != 0) begin_to_want(*task);
      ended.push_back(before);
      owners_.erase(before);
    }
    task->gang = gang.number;
    gang.gpus |= task->gpus;
  }
  // First what each member has, then the sum once for each GPU: there may be hundreds of members.
  for (const auto& [client, task] : members) {
    for (const GpuIndex gpu : GpuSet(task->gpus)) task->parts[gpu].usage = usage_of(*client, gpu);
    changed_.insert(client->id);
  }
  GpuMask said = 0;
  for (const auto& [client, task] : members) {
    for (const GpuIndex gpu : GpuSet(task->gpus & ~said)) {
      say_gpu(*client, gpu, core_.gpu(gpu).total, task->parts[gpu].context);
      tell_usage(*client, gpu);
    }
    said |= task->gpus;
  }
  for (const auto& [client, task] : members) {
    for (const GpuIndex gpu : GpuSet(task->gpus)) joined_gang(*client, gpu, gang.id);
  }
  if (gang.id != 0) gangs_in_core_[gang.id] = gang.number;
  for (const ClientId id : ended) {
    step(event::Leave{id});
    gangs_in_core_.erase(id);
  }
  if (gang.id == 0) return;
  log::debug("gang {} ({}): {} tasks of {} programs have their turns together", gang.number, gang.name, members.size(),
             gang.clients.size());
}

// A member takes its turns by itself again.
void Leases::become_alone(Program& client, Task& task) {
  const auto parts = std::exchange(task.parts, {});
  task.gang = 0;
  task.gave_back = false;
  task.id = ++last_number_;
  join(client, task);
  for (const auto& [gpu, part] : parts) {
    say_gpu(client, gpu, core_.gpu(gpu).total, part.context);
    tell_usage(client, gpu);
  }
  if (!is_to_join(client, task)) stays_alone(task);  // otherwise it has its next turn with the other gang
  changed_.insert(client.id);
}

// ---- its turns

// `running`: its work runs under a grant of an earlier rotad.
void Leases::want_together(Gang& gang, bool urgent, bool running) {
  if (withdraw_by() || gang.id == 0 || holds(gang)) return;
  const bool waited = !gang.whole && gang.size > 1;
  if (!is_whole(gang)) return;
  if (waited) take_in_linked(gang);
  bool any = false;
  for_each_member(gang, [&](const Program&, const Task& task) { any = any || task.wants; });
  const GpuMask gpus = any ? gang.gpus : 0;
  if (core_.client(gang.id)->wanted == gpus && !urgent && !running) return;
  step(event::Want{gang.id, gpus, running && any, urgent, false});
}

// Whether all of its clients have named a GPU, or have had the time to. Some may have ended since.
bool Leases::is_whole(Gang& gang) {
  const auto has_come = [&](ClientId id) {
    const Program* const client = program(id);
    return client != nullptr && !client->gpus().empty();
  };
  // After a restart of rotad those that had ended before are not waited for.
  const bool returns = gang.returning != 0;
  const std::uint32_t size = returns ? std::min(gang.size, gang.returning) : gang.size;
  gang.whole = gang.whole || std::ranges::count_if(gang.named, has_come) >= size;
  if (gang.whole) return true;
  const scheduler::Time left = gang.since + (returns ? kWaitForReturn : kWaitForAll) - now();
  if (left <= scheduler::Time{0} && returns) return gang.whole = true;
  if (left <= scheduler::Time{0}) {
    log::warn("gang {}: {} of its {} programs use a GPU after {} s: they begin without the others", gang.name,
              gang.named.size(), gang.size, kWaitForAll.count());
    return gang.whole = true;
  }
  check_later(gang, left);
  return false;
}

void Leases::check_later(Gang& gang, scheduler::Time in) {
  checks_.erase({gang.check_at, gang.number});
  gang.check_at = now() + in;
  checks_.insert({gang.check_at, gang.number});
}

std::optional<scheduler::Time> Leases::next_check() const {
  if (checks_.empty()) return std::nullopt;
  return checks_.begin()->first;
}

void Leases::check_if_due() {
  bool any = false;
  for (; !checks_.empty() && checks_.begin()->first <= now(); any = true) {
    gangs_due_.insert(checks_.begin()->second);
    checks_.erase(checks_.begin());
  }
  if (any) publish_changes(modelled_now());
}

void Leases::check(Gang& gang) {
  if (gang.id == 0) {
    if (is_apart(gang) && gang.clients.size() > 1) check_later(gang, gang.apart_until - now());
    return;
  }
  const scheduler::ClientState state = *core_.client(gang.id);
  if (std::exchange(gang.grant, state.grant) != state.grant && state.grant != 0) {
    gang.drain.begin_turn();
    gang.must_end = false;
    for_each_member(gang, [&](Program& client, Task& task) { client.heard = task.wants = task.gave_back = false; });
  }
  if (state.grant == 0) return want_together(gang, false);
  std::vector<GangDrain::Word> words;
  bool all_gave_back = true;
  for_each_member(gang, [&](const Program& client, const Task& task) {
    all_gave_back = all_gave_back && task.gave_back;
    if (task.gave_back) {
      gang.must_end = gang.must_end || task.wants;  // it cannot go on in this turn
      return;
    }
    words.push_back(rest_of(client, task));
  });
  const scheduler::Time drained_for = modelled_now() - gang.drain.began();
  const bool futile = gang.must_end && gang.drain.drains() && drained_for >= kOwnDrain;
  if (all_gave_back || futile) {
    if (gang.drain.drains()) gang.draining += std::min<scheduler::Time>(drained_for, kLongestCounted);
    return step(event::GiveBack{gang.id, state.grant});
  }
  const bool pressed = state.waiters != 0 || gang.must_end || withdraw_by();
  if (pressed || gang.drain.drains()) {
    const bool drained = gang.drain.drains();
    const bool news = gang.drain.look(words, gang.must_end || withdraw_by().has_value(), modelled_now());
    if (!drained && news) for_each_member(gang, [](Program& client, const Task&) { client.heard = false; });
    if (news) for_each_member(gang, [&](const Program& client, const Task&) { changed_.insert(client.id); });
    std::optional<scheduler::Time> next = gang.drain.next();
    if (gang.must_end && gang.drain.drains()) {
      const scheduler::Time latest = gang.drain.began() + kOwnDrain;
      next = next ? std::min(*next, latest) : latest;
    }
    if (next) check_later(gang, real(*next) - now());
  }
}

void Leases::gave_back(const Program& client, Task& task, std::uint32_t grant) {
  Gang& gang = *gang_of(task);
  if (gang.id == 0 || core_.client(gang.id)->grant != grant) return;
  task.gave_back = true;
  task.wants = false;
  changed_.insert(client.id);
  gangs_due_.insert(gang.number);
  publish_changes(modelled_now());
}

// The core has decided about the gang.
void Leases::decided(Gang& gang, const scheduler::Decision& decision) {
  using scheduler::Change;
  gangs_due_.insert(gang.number);
  for_each_member(gang, [&](Program& client, Task& task) {
    changed_.insert(client.id);
    if (decision.change == Change::kGranted) task.last_grant = decision.grant;
    if (decision.change == Change::kRevoked) decided(client, decision);
    if (decision.change != Change::kPassedOver || !task.parts.contains(decision.gpu)) return;
    decided(client, decision);
  });
  if (decision.change == Change::kGranted) log::debug("gang {}: grant {}", gang.number, decision.grant);
  if (decision.change == Change::kEnded) gang.revoked = 0;
  if (decision.change != Change::kRevoked) return;
  leave_out_silent(gang);
  if (++gang.revoked < kMostRevoked) return;
  gang.revoked = 0;
  part(gang, protocol::GangApart::kNoRest);
  log::warn(
      "gang {}: the work of its programs did not finish together in {} turns: for {} minutes they take their turns by "
      "themselves, or run concurrently with the others",
      gang.name, kMostRevoked, kApart.count());
}

// Its turn had to be revoked. A member that has said nothing while the others waited for it is stopped, perhaps: it
// takes turns by itself until it says something, so that this costs others one grace period and not one in each turn.
void Leases::leave_out_silent(const Gang& gang) {
  for_each_member(gang, [&](Program& client, const Task& task) {
    const bool may_end = !gang.drain.drains() && (rest_of(client, task).flags & protocol::kGangMayEnd) != 0;
    if (client.heard || may_end || task.gave_back || std::exchange(client.silent, true)) return;
    log::info("gang {}: client {} ({}, pid {}) does not answer, and takes its turns by itself until it does", gang.name,
              client.id, client.name, client.pid);
  });
}

void Leases::part(Gang& gang, protocol::GangApart why) {
  gang.apart = why;
  gang.apart_until = now() + kApart;
  for (const ClientId id : gang.clients) {
    Program* const client = program(id);
    if (client == nullptr) continue;
    client->apart = why;
    client->apart_until = gang.apart_until;
  }
}

// If its members' memory does not fit on a GPU, some would be missing in each of its turns: they take turns by
// themselves.
void Leases::part_if_overcommitted(Gang& gang) {
  const std::optional<GpuIndex> gpu = std::exchange(gang.overcommitted, std::nullopt);
  if (!gpu || is_apart(gang)) return;
  part(gang, protocol::GangApart::kNoRoom);
  log::warn(
      "gang {}: what its programs have on GPU {} does not fit there: for {} minutes they take their turns by "
      "themselves. Give them less memory, or a GPU each",
      gang.name, number_of(*gpu), kApart.count());
}

}  // namespace rota::server
