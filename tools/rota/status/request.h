// Queries a rotad: sends one message and receives rows.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/address/socket_path.h"
#include "scheduler/protocol/protocol.h"
#include "tools/rota/status/holders.h"
#include "tools/rota/status/uncovered.h"

namespace rota::tool {

// A program's user and command line, as far as this machine shows them; otherwise empty.
struct StatusProgram {
  std::string user;
  std::string command;
  char stopped = 0;  // 'T': by a signal, 't': by a debugger; 0: it is not, or that is not seen
};

// A GPU of this machine, as NVML shows it.
struct MachineGpu {
  unsigned number = 0;  // nvidia-smi's
  std::string uuid;
  std::string name;
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::optional<unsigned> busy_percent;  // of the last moment; nothing: the driver does not say
  // What processes have there, by pid. Those of another pid namespace are not named.
  std::map<pid_t, std::uint64_t> processes{};
};

// What rotad knows, and what else this machine shows.
struct Status : protocol::Snapshot {
  std::vector<GpuHolder> elsewhere;   // GPUs that other rotads have
  std::optional<unsigned> processes;  // that NVML lists, if neither this rotad nor another one has a GPU
  // All GPUs, in nvidia-smi's order, with the processes that are no clients of this rotad; empty: NVML does not say.
  std::vector<MachineGpu> machine;
  std::vector<StatusProgram> commands;  // of the programs, in their order; see find_programs()
  std::vector<Uncovered> uncovered;     // programs that should be clients and are not; see uncovered_programs()
};

// UUIDs of the GPUs that it has.
std::vector<std::string> served(const Status& status);

// False if the daemon has ended.
bool send_message(int descriptor, const protocol::Message& message);

// From a daemon that was asked for something other than a status. False: the daemon has ended, is silent, or is no
// rotad.
bool receive_message(int descriptor, protocol::Message& message);

// How long a rotad has to answer: it does so in milliseconds, except on a machine that is far too busy.
inline constexpr std::chrono::milliseconds kAnswerPatience{5000};

struct Answer {
  std::optional<Status> status;  // nothing: it closed the connection, or speaks another version; or:
  bool silent = false;           // it does not answer, see protocol::unresponsive_text()
};
// Does not wait for a rotad that is seen to be stopped.
Answer ask_status(int descriptor, std::chrono::milliseconds patience = kAnswerPatience);
inline std::optional<Status> request_status(int descriptor) {
  return ask_status(descriptor).status;
}

// Reads each client's process. If it is not visible, or the pid has been reused, the client's name is shown as its
// command.
void find_programs(Status& status);

// Its name, or "uid 1000" where it has none.
std::string user_name(std::uint32_t uid);

// A process that rotad does not know, as the kernel shows it. Empty where it has ended.
StatusProgram program_of(pid_t pid);
// Leaves out the clients of this rotad, and all of a GPU where one of them could be any of its processes.
void leave_out_clients(Status& status);

// One line about the places that a search skipped; empty if it skipped none.
std::string skipped_text(const protocol::SocketSearch& search);

}  // namespace rota::tool
