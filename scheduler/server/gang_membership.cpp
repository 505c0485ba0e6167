// Which gang each program is of.
//
// A program may name one. Programs of which one has memory of the other open are *linked*: their work may wait for each
// other's. Programs that are linked, directly or by others, and those that have named the same gang because of memory
// (GangWhy::kMemory) are of one gang for as long as that is so. What a program has named is kept: once it is linked to
// none, it is of that gang again. A gang that was named for another reason is not changed by links: its programs are of
// it and of no other, and those that are linked to them join it once it does not wait for programs that are to come.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "scheduler/server/gangs.h"
#include "scheduler/server/log.h"

namespace rota::server {

using protocol::GangWhy;
using scheduler::ClientId;
namespace event = scheduler::event;

namespace {

template <typename Gang>
bool gives_way(const Gang& gang) {
  return gang.why == GangWhy::kMemory && gang.size <= 1;
}

template <typename Gang>
void warn_that_full(const Program& client, Gang& gang) {
  if (std::exchange(gang.said_full, true)) return;
  log::warn("client {} ({}, pid {}): gang {} has {} programs already, and no more can have their turns together",
            client.id, client.name, client.pid, gang.name, protocol::kMostInGang);
}

}  // namespace

void Leases::on_gang(Program& client, const protocol::Gang& named) {
  const std::string name = named.name;
  const bool by_memory = named.why == GangWhy::kMemory && named.size <= 1;
  const auto former = gangs_.find(client.named);
  const bool first = former == gangs_.end();
  if (client.gangless || (!first && (by_memory || !gives_way(*former->second)))) return;
  std::set<ClientId> concerned = client.linked;
  concerned.insert(client.id);
  add_members(client.gang, concerned);
  if (name.empty()) {
    leave_named(client);
    client.named = 0;
    client.gangless = true;
    regroup(std::move(concerned));
    return publish_changes(modelled_now());
  }
  Gang& gang = gang_named(client, name);
  if (gang.named.size() >= protocol::kMostInGang) return warn_that_full(client, gang);
  leave_named(client);
  gang.named.insert(client.id);
  client.named = gang.number;
  gangs_due_.insert(gang.number);
  const bool gave_way = gives_way(gang);
  gang.size = std::max(gang.size, std::min<std::uint32_t>(named.size, protocol::kMostInGang));
  const bool unknown = gang.why == GangWhy::kNone || gang.why == GangWhy::kMemory;
  if (unknown && named.why != GangWhy::kNone && static_cast<int>(named.why) <= protocol::kLastGangWhy) {
    gang.why = named.why;
  }
  if (by_memory && connected_with(client).size() > protocol::kMostInGang) {
    gang.named.erase(client.id);
    client.named = 0;
    return warn_that_full(client, gang);
  }
  // First, since those that are only linked to its programs make way for those that have named it.
  regroup({client.id});
  if (gave_way && !gives_way(gang)) {
    for (const ClientId id : gang.named) {
      if (const Program* const other = program(id)) add_members(other->gang, concerned);
    }
  }
  if (gang.clients.size() > protocol::kMostInGang) add_members(gang.number, concerned);
  regroup(std::move(concerned));
  publish_changes(modelled_now());
}

void Leases::link_programs(Program& one, Program& another) {
  if (one.gang == 0 || one.gang != another.gang) {
    std::size_t programs = 0;
    for (const Program* const each : {&one, &another}) {
      const auto gang = gangs_.find(each->gang);
      programs += gang == gangs_.end() ? 1 : gang->second->clients.size();
    }
    if (programs > protocol::kMostInGang) {
      log::debug("clients {} and {} would be of a gang of {} programs, which is too many", one.id, another.id,
                 programs);
      return;
    }
  }
  one.linked.insert(another.id);
  another.linked.insert(one.id);
  regroup({one.id, another.id});
  publish_changes(modelled_now());
}

void Leases::unlink_programs(Program& one, Program& another) {
  if (one.linked.erase(another.id) + another.linked.erase(one.id) == 0) return;
  regroup({one.id, another.id});
  publish_changes(modelled_now());
}

void Leases::heard(Program& client) {
  client.heard = true;
  if (!std::exchange(client.silent, false)) return;
  gangs_due_.insert(client.gang);
  publish_changes(modelled_now());
}

void Leases::leave_named(const Program& client) {
  const auto named = gangs_.find(client.named);
  if (named == gangs_.end()) return;
  named->second->named.erase(client.id);
  gangs_due_.insert(named->first);
}

// For a client that has ended.
void Leases::leave_gang(const Program& client) {
  leave_named(client);
  if (const auto gang = gangs_.find(client.gang); gang != gangs_.end()) {
    gang->second->clients.erase(client.id);
    gangs_due_.insert(gang->first);
  }
  for (const Task& task : client.tasks) {
    if (task.gang != 0) gangs_due_.insert(task.gang);
  }
  if (client.linked.empty()) return;
  std::set<ClientId> concerned = client.linked;
  add_members(client.gang, concerned);
  for (const ClientId id : client.linked) {
    if (Program* const other = program(id)) other->linked.erase(client.id);
  }
  regroup(std::move(concerned));
}

// Makes it, if there is none; one that is left only for programs to leave it is none. No client can name one that
// begins with an end of line.
Leases::Gang& Leases::gang_named(const Program& client, const std::string& name) {
  const std::string key = fmt::format("{}\n{}", client.domain.key(), name);
  std::uint32_t& number = gang_numbers_[key];
  if (number != 0) {
    Gang& known = *gangs_.at(number);
    if (!known.named.empty() || !known.clients.empty()) return known;
    gangs_due_.insert(number);
  }
  auto made = std::make_unique<Gang>();
  made->number = ++last_gang_;
  made->key = key;
  made->name = name;
  made->since = now();
  if (const auto earlier = earlier_verdicts_.find(key); earlier != earlier_verdicts_.end()) {
    made->apart = earlier->second.apart;
    made->apart_until = now() + earlier->second.left;
    made->revoked = earlier->second.revoked;
    made->returning = earlier->second.members;
    earlier_verdicts_.erase(earlier);
  }
  const auto entry = gangs_.emplace(last_gang_, std::move(made)).first;
  number = entry->first;
  return *entry->second;
}

void Leases::add_members(std::uint32_t gang, std::set<ClientId>& to) const {
  const auto found = gangs_.find(gang);
  if (found != gangs_.end()) to.insert(found->second->clients.begin(), found->second->clients.end());
}

// Whether links decide of which gang it is.
bool Leases::may_be_moved(const Program& client) const {
  const auto named = gangs_.find(client.named);
  return !client.gangless && (named == gangs_.end() || gives_way(*named->second));
}

// The program, and those that are to be of one gang with it.
std::set<ClientId> Leases::connected_with(const Program& client) const {
  std::set<ClientId> together{client.id};
  if (!may_be_moved(client)) return together;
  std::set<std::uint32_t> gangs;
  std::vector<const Program*> reached{&client};
  const auto reach = [&](const std::set<ClientId>& others) {
    for (const ClientId id : others) {
      const Program* const other = program(id);
      if (other != nullptr && may_be_moved(*other) && together.insert(id).second) reached.push_back(other);
    }
  };
  while (!reached.empty()) {
    const Program& each = *reached.back();
    reached.pop_back();
    reach(each.linked);
    if (each.named != 0 && gangs.insert(each.named).second) reach(gangs_.at(each.named)->named);
  }
  return together;
}

// The gang of programs that are to be of one; null: a program is of none.
Leases::Gang* Leases::gang_for(const std::set<ClientId>& together) {
  const auto own = [&](const Program& client) { return client.named == 0 ? nullptr : gangs_.at(client.named).get(); };
  const auto lower = [](Gang* one, Gang* another) {
    return one == nullptr || (another != nullptr && another->number < one->number) ? another : one;
  };
  const auto can_take_all = [&](const Gang& gang) {
    const auto there = std::ranges::count_if(together, [&](ClientId id) { return gang.clients.contains(id); });
    return gang.clients.size() + together.size() - static_cast<std::size_t>(there) <= protocol::kMostInGang;
  };
  const Program& first = *program(*together.begin());
  if (!may_be_moved(first)) return own(first);
  Gang* of_others = nullptr;  // programs that stay in theirs
  Gang* of_these = nullptr;
  for (const ClientId id : together) {
    const Program& client = *program(id);
    of_these = lower(of_these, own(client));
    for (const ClientId other_id : client.linked) {
      const Program* const other = program(other_id);
      if (other == nullptr || other->named == 0 || may_be_moved(*other)) continue;
      Gang* const gang = own(*other);
      if ((gang->whole || gang->size <= 1) && can_take_all(*gang)) of_others = lower(of_others, gang);
    }
  }
  if (of_others != nullptr) return of_others;
  if (of_these != nullptr || together.size() == 1) return of_these;
  Gang& made = gang_named(first, fmt::format("\n{}", first.id));
  made.name = fmt::format("ipc-{}", first.id);
  made.why = GangWhy::kMemory;
  // A verdict on two of them or more.
  std::map<scheduler::Time, unsigned> verdicts;
  for (const ClientId id : together) {
    const Program& client = *program(id);
    if (++verdicts[client.apart_until] < 2 || client.apart_until <= made.apart_until) continue;
    made.apart = client.apart;
    made.apart_until = client.apart_until;
  }
  return &made;
}

bool Leases::has_members_of(const Program& client, const Gang& gang) {
  return std::ranges::any_of(client.tasks, [&](const Task& task) { return task.gang == gang.number; });
}

// Null: it is of no gang from now on. Its tasks change their gang once that holds nothing (form()).
void Leases::move(Program& client, Gang* to) {
  const std::uint32_t number = to == nullptr ? 0 : to->number;
  const std::uint32_t before = std::exchange(client.gang, number);
  if (before == number) return;
  if (const auto from = gangs_.find(before); from != gangs_.end()) {
    from->second->clients.erase(client.id);
    if (has_members_of(client, *from->second)) from->second->leaving.insert(client.id);
    gangs_due_.insert(before);
  }
  if (to != nullptr) {
    to->leaving.erase(client.id);
    to->clients.insert(client.id);
    gangs_due_.insert(number);
    log::debug("client {} ({}, pid {}) is of gang {} ({}), with {} others", client.id, client.name, client.pid, number,
               to->name, to->clients.size() - 1);
    return;
  }
  for (Task& task : client.tasks) {
    if (task.gang == 0) stays_alone(task);
  }
}

// The gang waits for no more programs.
void Leases::take_in_linked(const Gang& gang) {
  std::set<ClientId> linked;
  for (const ClientId id : gang.named) {
    if (const Program* const client = program(id)) linked.insert(client->linked.begin(), client->linked.end());
  }
  regroup(std::move(linked));
}

// Programs that are to be of another gang, and whose tasks are no members of this one any more, may join that one.
void Leases::let_go(Gang& gang) {
  std::erase_if(gang.leaving, [&](ClientId id) {
    const Program* const client = program(id);
    if (client != nullptr && has_members_of(*client, gang)) return false;
    if (client != nullptr) gangs_due_.insert(client->gang);
    return true;
  });
}

// Moves these programs, and all that are connected with them, to the gangs of which they are to be.
void Leases::regroup(std::set<ClientId> programs) {
  const Within moving(coupling_);
  while (!programs.empty()) {
    const Program* const one = program(*programs.begin());
    if (one == nullptr) {
      programs.erase(programs.begin());
      continue;
    }
    const std::set<ClientId> together = connected_with(*one);
    Gang* const gang = gang_for(together);
    for (const ClientId id : together) {
      move(*program(id), gang);
      programs.erase(id);
    }
  }
}

}  // namespace rota::server
