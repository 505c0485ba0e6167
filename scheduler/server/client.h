// What the server keeps per client and per process that asked it to stay; private to the server's own files.
#pragma once

#include <asio/posix/stream_descriptor.hpp>
#include <optional>
#include <set>
#include <string>

#include "scheduler/server/server.h"

namespace rota::server {

struct Server::Client {
  scheduler::ClientId id = 0;
  std::uint32_t connection = 0;  // 0: it closed although the process lives
  scheduler::Time orphaned_at{};
  pid_t pid = 0;
  uid_t uid = 0;
  std::string name;
  std::size_t sessions = 0;  // that it has named
  // A Tighten has been sent that it has not answered; another one is due once it has.
  bool tightening = false;
  bool tighten_again = false;
  std::set<std::uint32_t> gpus;
  Page<protocol::LeasePage> lease;
  Page<protocol::UsagePage> usage;
  std::optional<asio::posix::stream_descriptor> process;  // its pidfd
};

struct Server::Stayer {
  pid_t pid = 0;
  uid_t uid = 0;
  std::optional<asio::posix::stream_descriptor> process;
};

}  // namespace rota::server
