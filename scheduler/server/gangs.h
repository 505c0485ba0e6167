// A gang: tasks of several clients that are one client of the core, which grants and withdraws all of their GPUs at
// once. core/gang_drain.h decides how its members come to rest.
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
  std::set<scheduler::ClientId> named;    // clients that have named it
  std::set<scheduler::ClientId> clients;  // whose tasks are to be its members
  std::set<scheduler::ClientId> leaving;  // others, whose tasks may still be
  scheduler::Time since{};                // the first of them came
  bool whole = false;                     // that many have named a GPU, or have had the time to
  std::uint32_t returning = 0;            // how many it had under the previous rotad, if all had come; 0: not known
  bool said_full = false;
  scheduler::ClientId id = 0;    // the core's client; 0: it has no members
  std::size_t members = 0;       // tasks that are in its sums, though their programs may have ended since
  LastActivity activity{};       // of that one
  scheduler::Time draining{};    // how long its turns have taken to end
  scheduler::GpuMask gpus = 0;   // that one's
  std::uint32_t last_grant = 0;  // the highest number of a grant that it or a member has had
  std::uint32_t grant = 0;       // that the next drain ends; 0: it holds nothing
  scheduler::GangDrain drain{};
  bool must_end = false;                               // its turn, since its members change or one cannot go on in it
  unsigned revoked = 0;                                // turns in a row
  std::optional<scheduler::GpuIndex> overcommitted{};  // where its members' memory does not fit
  protocol::GangApart apart{};                         // why its members took turns by themselves the last time,
  scheduler::Time apart_until{};                       // and until when
  scheduler::Time check_at{};                          // although nothing happens, in real time; 0: never
};

template <typename Visit>
void Leases::for_each_member(const Gang& gang, const Visit& visit) const {
  for (const auto* const clients : {&gang.clients, &gang.leaving}) {
    for (const scheduler::ClientId id : *clients) {
      Program* const member = program(id);
      if (member == nullptr) continue;
      for (Task& task : member->tasks) {
        if (task.gang == gang.number) visit(*member, task);
      }
    }
  }
}

}  // namespace rota::server
