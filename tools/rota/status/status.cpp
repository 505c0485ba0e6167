// Requests rotad's rows and shows them, for people and for programs.
#include "tools/rota/status/status.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "scheduler/base/uuid.h"
#include "scheduler/core/settings.h"
#include "tools/rota/report/format.h"
#include "tools/rota/run/output.h"
#include "tools/rota/status/look.h"
#include "tools/rota/status/sharing.h"
#include "tools/rota/status/words.h"

namespace rota::tool {

using protocol::TaskRow;

namespace {

std::string size_text(std::uint64_t bytes) {
  return bytes < (std::uint64_t{1} << 30) ? fmt::format("{:.0f} MiB", static_cast<double>(bytes) / (1 << 20))
                                          : fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

// How much of it is on the GPU, and what has moved so far.
std::string swap_text(const protocol::ProgramRow& client, const protocol::TaskRow& task) {
  std::string text = fmt::format(", {} resident", size_text(task.resident_bytes));
  const auto rate = [](std::uint64_t bytes, std::uint64_t ns) {
    return static_cast<double>(bytes) / static_cast<double>(std::max<std::uint64_t>(ns, 1));
  };
  const protocol::Moves& moves = client.moves;
  if (moves.out_bytes != 0 || moves.spared_bytes != 0) {
    text += fmt::format(", evicted: {} at {:.1f} GB/s and {} unchanged without a copy", size_text(moves.out_bytes),
                        rate(moves.out_bytes, moves.out_ns), size_text(moves.spared_bytes));
  }
  if (moves.in_bytes != 0) {
    text += fmt::format(", back: {} at {:.1f} GB/s", size_text(moves.in_bytes), rate(moves.in_bytes, moves.in_ns));
  }
  return text;
}

// What others have on a GPU, if any.
std::string outside_text(const protocol::GpuRow& gpu) {
  if (gpu.outside_bytes == 0) return {};
  const std::string size = size_text(gpu.outside_bytes);
  return gpu.measured != 0 ? fmt::format("; {} by other programs", size)
                           : fmt::format("; others have {}, judging by what the driver refused", size);
}

std::string nobody_text(std::optional<unsigned> processes) {
  const std::string others = others_text(processes);
  return others.empty() ? "no program uses a GPU under rota\n" : "no program uses a GPU under this rotad\n" + others;
}

const MachineGpu* machine_gpu(const Status& status, const std::string& uuid) {
  const auto found = std::ranges::find(status.machine, uuid, &MachineGpu::uuid);
  return found == status.machine.end() ? nullptr : &*found;
}

std::string busy_text(const MachineGpu* gpu) {
  return gpu == nullptr || !gpu->busy_percent ? "" : fmt::format(", {}% busy", *gpu->busy_percent);
}

// What is reserved on a GPU for programs that do not use it yet (`rota run --gpus`).
std::string reserved_text(const Status& status, const std::string& uuid) {
  std::string text;
  for (const protocol::ReservationRow& each : status.reservations) {
    if (uuid_text(each.uuid) != uuid) continue;
    const bool hidden = each.uid == protocol::kHiddenUser;
    text += fmt::format("  reserved for {} more seconds at most: {}{}\n", (each.left_ns + 999'999'999) / 1'000'000'000,
                        each.pid == 0 ? "" : fmt::format("pid {} of ", each.pid),
                        hidden ? protocol::kHiddenProgram : user_name(each.uid));
  }
  return text;
}

// The processes on it that are no clients of this rotad.
std::string natives_text(const MachineGpu* gpu) {
  std::string text;
  if (gpu == nullptr) return text;
  for (const auto& [pid, bytes] : gpu->processes) {
    const StatusProgram program = program_of(pid);
    if (program.command.empty()) continue;
    text += fmt::format("  not under this rotad: pid {} ({}, {}) has {}\n", pid, report::printable(program.command),
                        program.user, size_text(bytes));
  }
  return text;
}

// A GPU that no program uses under this rotad.
std::string unused_text(const MachineGpu& gpu) {
  return fmt::format("\nGPU {}  {}  {}\n  no program uses it under this rotad; {} of {} in use{}\n", gpu.number,
                     printable(gpu.name), printable(gpu.uuid), size_text(gpu.used_bytes), size_text(gpu.total_bytes),
                     busy_text(&gpu)) +
         natives_text(&gpu);
}

// Programs that this rotad has accepted while another one has their GPU.
std::string without_turns_text(const Status& status) {
  std::string text;
  for (const protocol::ProgramRow& client : status.programs) {
    if (client.gpus != 0) continue;
    text += fmt::format("  without turns there, its memory stays: {}{}\n",
                        client.pid == 0 ? "" : fmt::format("pid {} ", client.pid), client.name);
  }
  return text;
}

// On one line that people can read.
std::string shown_command(const std::string& command) {
  constexpr std::size_t kMost = 400;
  return report::printable_beginning(command, kMost);
}

// The status of one moment; nothing: a line has said why there is none.
std::optional<std::string> look(bool json) {
  Looked looked = look_at_rotad();
  if (!looked.messages.empty()) write_message(looked.messages);
  if (!looked.status) return std::nullopt;
  looked.status->uncovered = uncovered_programs(looked.socket);
  return json ? status_as_json(*looked.status, looked.socket) : status_as_text(*looked.status, looked.socket);
}

int show(bool json) {
  const std::optional<std::string> text = look(json);
  return text && print("rota status", *text) ? 0 : 1;
}

// Whether a cursor can be moved there.
bool moves_cursor() {
  const char* const kind = getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && kind != nullptr && std::strcmp(kind, "dumb") != 0;
}

// On a terminal each status replaces the one before; otherwise it follows after an empty line, as JSON in a line of its
// own. Continues when rotad ends and comes back, until the reader closes the pipe.
int watch(bool json, double every) {
  const bool terminal = !json && moves_cursor();
  for (bool first = true;; first = false) {
    const std::optional<std::string> text = look(json);
    std::string shown = text.value_or("");
    if (json) {
      std::erase(shown, '\n');
      shown += '\n';
    } else if (terminal) {
      // Line by line over what is there, so that nothing flickers.
      std::string lines = "\x1b[H";
      for (const char letter : shown) lines += letter == '\n' ? "\x1b[K\n" : std::string(1, letter);
      shown = (first ? "\x1b[2J" : "") + lines + "\x1b[J";
    } else if (!first) {
      shown = "\n" + shown;
    }
    if (text && !print("rota status", shown)) return 1;
    std::this_thread::sleep_for(std::chrono::duration<double>(every));
  }
}

std::string gang_doing(const protocol::GangRow& gang) {
  switch (gang.apart) {
    case protocol::GangApart::kNoRest:
      return ", take turns by themselves for now: their work did not finish together in time";
    case protocol::GangApart::kNoRoom:
      return ", take turns by themselves for now: what they have on one GPU does not fit there";
    case protocol::GangApart::kNo:
      break;
  }
  if (gang.programs < 2) return ", none of the others is connected";
  return gang.drains != 0 ? ", finish their work since their turn is over" : "";
}

// Others may wait for the memory of such a program for as long as it is stopped.
std::string stopped_text(const protocol::ProgramRow& client, const StatusProgram& program) {
  if (program.stopped == 0) return {};
  if (program.stopped == 't') return ", is stopped by a debugger: its memory stays on the GPU until it goes on or ends";
  return fmt::format(", is stopped: its memory stays on the GPU until it goes on (kill -CONT {}) or ends", client.pid);
}

std::string gpu_text(const Status& status, const protocol::GpuRow& gpu) {
  std::string text = fmt::format("\nGPU {}  {}  {}\n  {} of {} allocated by {} program{}; {} hold{} it, {} wait{}\n",
                                 gpu.number, gpu.name, uuid_text(gpu.uuid), size_text(gpu.used_bytes),
                                 size_text(gpu.total_bytes), gpu.clients, gpu.clients == 1 ? "" : "s", gpu.holders,
                                 gpu.holders == 1 ? "s" : "", gpu.waiters, gpu.waiters == 1 ? "s" : "");
  text += gpu.measured != 0 ? fmt::format("  {} in use and {} free, measured", size_text(gpu.driver_used_bytes),
                                          size_text(gpu.driver_free_bytes))
                            : "  memory in use is not measured, only what programs report is known";
  text += fmt::format("{}{}\n", busy_text(machine_gpu(status, uuid_text(gpu.uuid))), outside_text(gpu));
  if (const std::string sharing = sharing_text(gpu); !sharing.empty()) text += fmt::format("  {}\n", sharing);
  if (gpu.handed_over_bytes != 0) {
    text += fmt::format("  {} handed over from program to program so far\n", size_text(gpu.handed_over_bytes));
  }
  text += fmt::format("  {:<6} {:<12} {:>10}  {:>9}  {}\n", "", "process", "allocated", "for", "program");
  for (std::size_t i = 0; i < status.programs.size(); ++i) {
    const protocol::ProgramRow& client = status.programs[i];
    const TaskRow* task = status.task(client.client, gpu.index);
    if (task == nullptr) continue;
    const bool holds = task->holds != 0;
    const char* doing = task->waits != 0 ? "waits" : holds ? "holds" : "idle";
    std::string more;
    if (const std::string session = session_of(client); !session.empty()) more += fmt::format(", session {}", session);
    if (task->mode != protocol::MemoryMode::kUnknown) {
      const ServedHow how = served_how(task->mode);
      more += fmt::format(", memory: {}", how.mode);
      if (!how.reason.empty()) more += fmt::format(" ({})", how.reason);
      if (task->mode == protocol::MemoryMode::kSwap) more += swap_text(client, *task) + staying_text(task, holds);
    }
    more += fmt::format(", contexts and modules: {} {}", size_text(task->context_bytes),
                        task->measured != 0 ? "measured" : "assumed");
    if (task->gang != 0) more += fmt::format(", gang {}", task->gang);
    for (const std::string& part : waits_of(status, *task)) more += ", " + part;
    if (i < status.commands.size()) more += stopped_text(client, status.commands[i]);
    if (task->overrun != 0) more += ", did not give the GPU back in time: others run at the same time";
    text += fmt::format("  {:<6} pid {:<8} {:>10}  {:>9}  {}{}\n", doing,
                        client.pid == 0 ? "?" : std::to_string(client.pid), size_text(task->device_bytes),
                        fmt::format("{:.1f} s", static_cast<double>(task->since_ns) / 1e9),
                        report::printable(client.name), more);
    if (const std::string use = use_text(task, gpu); !use.empty()) text += fmt::format("         {}\n", use);
    if (i < status.commands.size() && !status.commands[i].user.empty()) {
      text += fmt::format("         {}: {}\n", status.commands[i].user, shown_command(status.commands[i].command));
    }
  }
  return text;
}

}  // namespace

std::string status_as_text(const Status& status, const std::string& socket) {
  std::string text =
      fmt::format("rotad pid {} at {}: {} mode, quantum {}, {} grants so far\n", status.daemon.pid, socket,
                  scheduler::mode_name(status.daemon.mode),
                  scheduler::quantum_text(std::chrono::nanoseconds(status.daemon.quantum_ns)), status.daemon.grants);
  if (status.daemon.nvml_released != 0) {
    text += "NVML is released: rotad measures no memory until a program comes to a GPU, or `rota control nvml use`\n";
  }
  for (const GpuHolder& holder : status.elsewhere) text += holder_text(holder) + "\n";
  if (!status.elsewhere.empty() || status.gpus.empty()) text += without_turns_text(status);
  if (status.gpus.empty()) {
    const bool nobody = status.elsewhere.empty() && status.programs.empty();
    text += nobody ? nobody_text(status.processes) : "this rotad has no GPU\n";
  }
  // In nvidia-smi's order, whether or not anything runs there.
  std::multimap<unsigned, std::string> gpus;
  std::set<std::string> shown;
  for (const protocol::GpuRow& gpu : status.gpus) {
    const std::string uuid = uuid_text(gpu.uuid);
    gpus.emplace(gpu.number,
                 gpu_text(status, gpu) + natives_text(machine_gpu(status, uuid)) + reserved_text(status, uuid));
    shown.insert(uuid);
  }
  for (const MachineGpu& gpu : status.machine) {
    if (shown.insert(gpu.uuid).second) gpus.emplace(gpu.number, unused_text(gpu) + reserved_text(status, gpu.uuid));
  }
  for (const auto& [number, lines] : gpus) text += lines;
  // GPUs that neither NVML shows nor a program uses.
  for (const protocol::ReservationRow& each : status.reservations) {
    const std::string uuid = uuid_text(each.uuid);
    if (shown.insert(uuid).second) text += fmt::format("\n{}\n{}", uuid, reserved_text(status, uuid));
  }
  if (!status.gangs.empty()) text += "\nGangs: programs that have their turns together\n";
  for (const protocol::GangRow& gang : status.gangs) {
    text += fmt::format("  {}  {}: {}{} program{}, {}{}\n", gang.number, report::printable(gang.name), gang.programs,
                        gang.size == 0 ? "" : fmt::format(" of {}", gang.size),
                        gang.programs == 1 && gang.size <= 1 ? "" : "s", gang_why(gang), gang_doing(gang));
  }
  if (!status.accounts.empty()) text += "\nLimits\n";
  for (const protocol::AccountRow& account : status.accounts) {
    std::string line;
    if (account.device_limit != protocol::kUnlimited) {
      line += fmt::format("  {} of {} on each GPU", size_text(account.device_used), size_text(account.device_limit));
    }
    if (account.host_limit != protocol::kUnlimited) {
      line +=
          fmt::format("  {} of {} in the host's memory", size_text(account.host_used), size_text(account.host_limit));
    }
    if (account.host_swap_bytes != 0) {
      line += fmt::format("  {} there for swapping, {} of it reclaimable", size_text(account.host_swap_bytes),
                          size_text(account.host_spare_bytes));
    }
    text += fmt::format("  {}, {} program{}:{}\n", account.name, account.clients, account.clients == 1 ? "" : "s",
                        line.empty() ? "  no limit of its own" : line);
  }
  std::vector<std::string> remedies;
  for (const Uncovered& one : status.uncovered) {
    if (std::ranges::find(remedies, one.remedy) == remedies.end()) remedies.emplace_back(one.remedy);
  }
  // Programs with the same remedy, together.
  for (const std::string& remedy : remedies) {
    text += fmt::format("\nIn a session, but without rota ({})\n", remedy);
    for (const Uncovered& one : status.uncovered) {
      if (one.remedy != remedy) continue;
      text += fmt::format("  pid {:<8} {}{}\n         {}\n", one.process,
                          one.limited ? "its limit does not hold: " : "", shown_command(one.command), one.why);
    }
  }
  return text;
}

int watch_status(double every) {
  return watch(false, every);
}

void add_seconds_option(CLI::App& command, const std::string& name, double& seconds, const std::string& help) {
  command.add_option(name, seconds, help)->check(CLI::Range(0.1, 86400.0))->check([](const std::string& text) {
    return text.starts_with('n') || text.starts_with('N') ? "'" + text + "' is not a number of seconds" : std::string();
  });
}

void register_status(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  auto every = std::make_shared<double>(0);
  CLI::App* status = app.add_subcommand("status", "show GPUs, who holds them and who waits");
  status->add_flag("--json", *json, "for programs, as share/rota/status.schema.json describes");
  add_seconds_option(*status, "--watch", *every, "show it again and again, every so many seconds, until it is ended");
  status->callback([json, every] { throw CLI::RuntimeError(*every != 0 ? watch(*json, *every) : show(*json)); });
}

}  // namespace rota::tool
