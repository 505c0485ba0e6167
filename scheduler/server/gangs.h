// A gang: tasks of several clients that are one client of the core, which grants and withdraws all of their GPUs at
// once. How its members come to rest is core/gang_drain.h's.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "scheduler/core/gang_drain.h"
#include "scheduler/server/leases.h"

namespace rota::server {

struct Leases::Gang {
  std::uint32_t number = 0;
  std::string key;   // whose it is, and its name
  std::string name;  // as its clients say it
  protocol::GangWhy why{};
  std::uint32_t size = 0;                 // clients that it is to have; 0: not known
  std::set<scheduler::ClientId> clients;  // that have named it
  scheduler::Time since{};                // the first of them
  bool whole = false;                     // so many have come to a GPU, or have had the time to
  std::uint32_t returning = 0;            // so many it had under the rotad before, where all had come; 0: not known
  bool said_full = false;
  scheduler::ClientId id = 0;    // the core's client; 0: it has no members
  LastActivity activity{};       // of that one
  scheduler::Time draining{};    // how long its turns have taken to end
  scheduler::GpuMask gpus = 0;   // that one's
  std::uint32_t last_grant = 0;  // the highest number of a grant that it or a member has had
  std::uint32_t grant = 0;       // whose drain the next is; 0: it holds nothing
  scheduler::GangDrain drain{};
  bool must_end = false;                         // its turn, since its members change or one cannot go on in it
  unsigned revoked = 0;                          // turns in a row
  std::optional<scheduler::GpuIndex> crowded{};  // where its members' memory does not fit
  protocol::GangApart apart{};                   // why its members took turns by themselves the last time,
  scheduler::Time apart_until{};                 // and until when
  scheduler::Time look_at{};                     // although nothing happens, in real time; 0: never
};

// By program, in the order of their numbers.
template <typename Visit>
void Leases::for_each_member(const Gang& gang, const Visit& visit) const {
  for (const scheduler::ClientId id : gang.clients) {
    Program* const member = program(id);
    if (member == nullptr) continue;
    for (Task& task : member->tasks) {
      if (task.gang == gang.number) visit(*member, task);
    }
  }
}

}  // namespace rota::server
