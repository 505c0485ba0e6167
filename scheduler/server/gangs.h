// A gang: tasks of several clients that are one client of the core, which grants and withdraws all of their GPUs at
// once. How its members come to rest is core/gang_drain.h's.
#pragma once

#include <asio/steady_timer.hpp>
#include <cstdint>
#include <set>
#include <string>

#include "scheduler/core/gang_drain.h"
#include "scheduler/server/client.h"

namespace rota::server {

struct Server::Gang {
  std::uint32_t number = 0;
  std::string key;   // whose it is, and its name
  std::string name;  // as its clients say it
  protocol::GangWhy why{};
  std::uint32_t size = 0;                 // clients that it is to have; 0: not known
  std::set<scheduler::ClientId> clients;  // that have named it
  scheduler::Time since{};                // the first of them
  bool whole = false;                     // so many have come to a GPU, or have had the time to
  bool said_full = false;
  scheduler::ClientId id = 0;    // the core's client; 0: it has no members
  scheduler::GpuMask gpus = 0;   // that one's
  std::uint32_t last_grant = 0;  // the highest number of a grant that it or a member has had
  std::uint32_t grant = 0;       // whose drain the next is; 0: it holds nothing
  scheduler::GangDrain drain{};
  bool must_end = false;          // its turn, since its members change or one cannot go on in it
  unsigned revoked = 0;           // turns in a row
  scheduler::Time apart_until{};  // its members cannot be drained together and take turns by themselves
  asio::steady_timer timer;

  explicit Gang(asio::io_context& io) : timer(io) {}
};

}  // namespace rota::server
