// Asking a rotad: one message there, rows back.
#pragma once

#include <optional>
#include <vector>

#include "scheduler/protocol/protocol.h"

namespace rota::tool {

struct Status {
  std::vector<protocol::StatusGpu> gpus;
  std::vector<protocol::StatusClient> clients;
  protocol::StatusEnd end;
};

// False if the daemon has gone.
bool send_message(int descriptor, const protocol::Message& message);

// Nothing if the daemon hung up, speaks another version or does not answer within five seconds.
std::optional<Status> request_status(int descriptor);

}  // namespace rota::tool
