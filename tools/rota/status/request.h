// Queries a rotad: sends one message and receives rows.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scheduler/protocol/protocol.h"
#include "scheduler/protocol/socket_path.h"
#include "tools/rota/status/holders.h"

namespace rota::tool {

// A client's user and command line, as far as this machine shows them; otherwise empty.
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
  std::vector<GpuHolder> elsewhere;     // GPUs that other rotads have
  std::optional<unsigned> processes;    // that NVML lists, if neither this rotad nor another one has a GPU
  std::vector<StatusProgram> programs;  // of the clients, in their order; see find_programs()
};

// False if the daemon is gone.
bool send_message(int descriptor, const protocol::Message& message);

// Nothing if the daemon closed the connection, speaks another version or does not answer within five seconds.
std::optional<Status> request_status(int descriptor);

// Reads each client's process. If it is not visible, or the pid has been reused, the client's name is shown as its
// command.
void find_programs(Status& status);

// One line about the places that a search skipped; empty if it skipped none.
std::string skipped_text(const protocol::SocketSearch& search);

}  // namespace rota::tool
