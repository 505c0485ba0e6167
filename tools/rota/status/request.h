// Asking a rotad: one message there, rows back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scheduler/protocol/protocol.h"
#include "scheduler/protocol/socket_path.h"

namespace rota::tool {

// Whose a client is and how it was started, as this machine shows it; empty where it does not.
struct StatusProgram {
  std::string user;
  std::string command;
};

struct Status {
  std::vector<protocol::StatusGpu> gpus;
  std::vector<protocol::StatusClient> clients;
  std::vector<protocol::StatusUse> uses;          // one for each client and GPU; none from older rotads
  std::vector<protocol::StatusAccount> accounts;  // whose memory is limited together; none from older rotads
  protocol::StatusEnd end;
  std::vector<StatusProgram> programs;  // of the clients, in their order; see find_programs()
};

// False if the daemon has gone.
bool send_message(int descriptor, const protocol::Message& message);

// Nothing if the daemon hung up, speaks another version or does not answer within five seconds.
std::optional<Status> request_status(int descriptor);

// Looks at each client's process. One that is not to be seen, or is another's by now, has its name for a command.
void find_programs(Status& status);

// One line about the places that a search passed over; empty if it passed over none.
std::string skipped_text(const protocol::SocketSearch& search);

}  // namespace rota::tool
