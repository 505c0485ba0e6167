#include "tools/rota/status/look.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "scheduler/address/socket_path.h"
#include "scheduler/address/unresponsive.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/base/uuid.h"
#include "tools/rota/status/processes.h"

namespace rota::tool {

std::string others_text(std::optional<unsigned> processes) {
  if (processes.value_or(0) == 0) return {};
  return fmt::format("rota: NVML lists {} process{} on the GPUs, without rota or of a rotad in another container\n",
                     *processes, *processes == 1 ? "" : "es");
}

Looked look_at_rotad() {
  const protocol::SocketSearch search = protocol::find_rotad();
  Looked looked{.status = std::nullopt, .socket = search.candidate.path, .messages = {}, .machine = {}};
  std::string& messages = looked.messages;
  if (search.skipped_count != 0) messages += "rota: " + skipped_text(search) + "\n";
  const Descriptor rotad(search.descriptor);
  std::vector<GpuHolder> holders = find_holders();
  std::optional<Machine> machine = ask_machine();
  const std::optional<unsigned> processes = machine ? std::optional(machine->processes) : std::nullopt;
  if (machine) looked.machine = std::move(machine->gpus);
  if (!rotad) {
    messages += protocol::nobody_there(search.error)
                    ? fmt::format("rota: no rotad is running{} (last looked for at {}): `rota run` starts one\n",
                                  holders.empty() ? "" : " where your programs would find it", looked.socket)
                    : fmt::format("rota: cannot talk to the rotad at {}: {}\n", looked.socket, strerror(search.error));
    for (const GpuHolder& holder : holders) messages += "rota: " + holder_text(holder) + "\n";
    if (holders.empty()) messages += others_text(processes);
    return looked;
  }
  Answer answer = ask_status(rotad.get());
  if (answer.silent) {
    messages +=
        fmt::format("rota: {}\n", protocol::unresponsive_text(looked.socket, protocol::listener_of(rotad.get())));
    return looked;
  }
  if (!answer.status) {
    messages +=
        fmt::format("rota: the rotad at {} does not answer, or belongs to another version of rota\n", looked.socket);
    return looked;
  }
  Status& status = *answer.status;
  find_programs(status);
  leave_out(holders, status.daemon.pid, looked.socket, served(status));
  status.elsewhere = std::move(holders);
  if (status.gpus.empty() && status.elsewhere.empty()) status.processes = processes;
  status.machine = looked.machine;
  leave_out_clients(status);
  // Without NVML rotad has the numbers of the program that named a GPU first.
  for (protocol::GpuRow& gpu : status.gpus) {
    const auto known = std::ranges::find(status.machine, uuid_text(gpu.uuid), &MachineGpu::uuid);
    if (known != status.machine.end()) gpu.number = known->number;
  }
  looked.status = std::move(status);
  return looked;
}

}  // namespace rota::tool
