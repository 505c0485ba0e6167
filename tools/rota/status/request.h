// Asking a rotad: one message there, rows back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scheduler/protocol/protocol.h"
#include "scheduler/protocol/socket_path.h"

namespace rota::tool {

struct Status {
  std::vector<protocol::StatusGpu> gpus;
  std::vector<protocol::StatusClient> clients;
  std::vector<protocol::StatusUse> uses;          // one for each client and GPU; none from older rotads
  std::vector<protocol::StatusAccount> accounts;  // whose memory is limited together; none from older rotads
  protocol::StatusEnd end;
};

// False if the daemon has gone.
bool send_message(int descriptor, const protocol::Message& message);

// Nothing if the daemon hung up, speaks another version or does not answer within five seconds.
std::optional<Status> request_status(int descriptor);

// One line about the places that a search passed over; empty if it passed over none.
std::string skipped_text(const protocol::SocketSearch& search);

}  // namespace rota::tool
