// Requests rotad's rows and shows them, for people and for programs.
#include "tools/rota/status/status.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "scheduler/address/socket_path.h"
#include "scheduler/address/unresponsive.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/base/uuid.h"
#include "scheduler/core/settings.h"
#include "tools/rota/report/format.h"
#include "tools/rota/status/processes.h"
#include "tools/rota/status/sharing.h"

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
    text += fmt::format(", moved out: {} at {:.1f} GB/s and {} unchanged without a copy", size_text(moves.out_bytes),
                        rate(moves.out_bytes, moves.out_ns), size_text(moves.spared_bytes));
  }
  if (moves.in_bytes != 0) {
    text += fmt::format(", back: {} at {:.1f} GB/s", size_text(moves.in_bytes), rate(moves.in_bytes, moves.in_ns));
  }
  return text;
}

struct ServedHow {
  const char* option;  // the word of --memory, for programs
  const char* mode;    // for people
  std::string reason;  // or empty
};

ServedHow served_how(protocol::MemoryMode mode) {
  using protocol::MemoryMode;
  switch (mode) {
    case MemoryMode::kUnified:
      return {"managed", "Unified Memory", {}};
    case MemoryMode::kNativeChosen:
      return {"native", "native", "ROTA_MEMORY=native"};
    case MemoryMode::kNativeNoManaged:
      return {"native", "native", "no managed memory"};
    case MemoryMode::kNativeNoPaging:
      return {"native", "native", "no concurrent managed access"};
    case MemoryMode::kNativeShared:
      return {"native", "native", "handed to other processes"};
    case MemoryMode::kNativeWatched:
      return {"native", "native", "a tool or debugger watches it"};
    case MemoryMode::kNativeRefused:
      return {"native", "native from now on", "a function refused Unified Memory"};
    case MemoryMode::kSwap:
      return {"swap", "swap", {}};
    case MemoryMode::kUnifiedMps:
    case MemoryMode::kUnifiedMig:
    case MemoryMode::kUnifiedConfidential:
    case MemoryMode::kUnifiedCoherent:
      return {"managed", "Unified Memory", fmt::format("swap has not been tested {}", protocol::untested_where(mode))};
    case MemoryMode::kUnknown:
      break;
  }
  return {"unknown", "unknown", {}};
}

// Where a figure for a client's memory comes from.
const char* source(bool measured) {
  return measured ? "measured" : "reported";
}

// What others have on a GPU, if any.
std::string outside_text(const protocol::GpuRow& gpu) {
  if (gpu.outside_bytes == 0) return {};
  const std::string size = size_text(gpu.outside_bytes);
  return gpu.measured != 0 ? fmt::format("; {} by other programs", size)
                           : fmt::format("; others have {}, judging by what the driver refused", size);
}

// Processes that NVML lists although this rotad and its like know of none.
std::string others_text(std::optional<unsigned> processes) {
  if (processes.value_or(0) == 0) return {};
  return fmt::format("rota: {} process{} on the GPUs, by NVML: without rota, or of a rotad in another container\n",
                     *processes, *processes == 1 ? " is" : "es are");
}

std::string nobody_text(std::optional<unsigned> processes) {
  const std::string others = others_text(processes);
  return others.empty() ? "no program uses a GPU under rota\n" : "no program uses a GPU under this rotad\n" + others;
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

nlohmann::json measured_or_null(bool measured, std::uint64_t bytes) {
  return measured ? nlohmann::json(bytes) : nlohmann::json(nullptr);
}

// On one line that people can read.
std::string shown_command(const std::string& command) {
  constexpr std::size_t kMost = 400;
  return report::printable_beginning(command, kMost);
}

int show(bool json) {
  const protocol::SocketSearch search = protocol::find_rotad();
  if (search.skipped_count != 0) write_message("rota: " + skipped_text(search) + "\n");
  const Descriptor rotad(search.descriptor);
  std::vector<GpuHolder> holders = find_holders();
  if (!rotad) {
    if (protocol::nobody_there(search.error)) {
      write_message(fmt::format("rota: no rotad is running{} (last looked for at {}): `rota run` starts one\n",
                                holders.empty() ? "" : " where your programs would find it", search.candidate.path));
    } else {
      write_message(
          fmt::format("rota: cannot talk to the rotad at {}: {}\n", search.candidate.path, strerror(search.error)));
    }
    for (const GpuHolder& holder : holders) write_message("rota: " + holder_text(holder) + "\n");
    if (holders.empty()) write_message(others_text(processes_on_gpus()));
    return 1;
  }
  Answer answer = ask_status(rotad.get());
  std::optional<Status>& status = answer.status;
  if (answer.silent) {
    write_message(fmt::format("rota: {}\n",
                              protocol::unresponsive_text(search.candidate.path, protocol::listener_of(rotad.get()))));
    return 1;
  }
  if (!status) {
    write_message(fmt::format("rota: the rotad at {} does not answer, or belongs to another version of rota\n",
                              search.candidate.path));
    return 1;
  }
  find_programs(*status);
  leave_out(holders, status->daemon.pid, search.candidate.path, served(*status));
  status->elsewhere = std::move(holders);
  if (status->gpus.empty() && status->elsewhere.empty()) status->processes = processes_on_gpus();
  status->uncovered = uncovered_programs(search.candidate.path);
  const std::string text =
      json ? status_as_json(*status, search.candidate.path) : status_as_text(*status, search.candidate.path);
  return print("rota status", text) ? 0 : 1;
}

std::string gang_why(const protocol::GangRow& gang) {
  switch (gang.why) {
    case protocol::GangWhy::kNamed:
      return "named by --gang";
    case protocol::GangWhy::kCollective:
      return "use collective kernels";
    case protocol::GangWhy::kMemory:
      return "share memory";
    case protocol::GangWhy::kNone:
      break;
  }
  return "for a reason that this release does not know";
}

std::string gang_doing(const protocol::GangRow& gang) {
  switch (gang.apart) {
    case protocol::GangApart::kNoRest:
      return ", take turns by themselves for now: they could not be brought to rest together";
    case protocol::GangApart::kNoRoom:
      return ", take turns by themselves for now: what they have on one GPU does not fit there";
    case protocol::GangApart::kNo:
      break;
  }
  if (gang.programs < 2) return ", the others are not there";
  return gang.drains != 0 ? ", come to rest since their turn is over" : "";
}

}  // namespace

std::string status_as_json(const Status& status, const std::string& socket) {
  nlohmann::json gpus = nlohmann::json::array();
  for (const protocol::GpuRow& gpu : status.gpus) {
    gpus.push_back({{"uuid", uuid_text(gpu.uuid)},
                    {"index", gpu.number},
                    {"mode", scheduler::mode_name(gpu.mode)},
                    {"total_bytes", gpu.total_bytes},
                    {"used_bytes", gpu.used_bytes},
                    {"source", source(gpu.measured != 0)},
                    {"driver_used_bytes", measured_or_null(gpu.measured != 0, gpu.driver_used_bytes)},
                    {"driver_free_bytes", measured_or_null(gpu.measured != 0, gpu.driver_free_bytes)},
                    {"handed_over_bytes", gpu.handed_over_bytes},
                    {"outside_bytes", gpu.outside_bytes},
                    {"sharing", sharing_json(gpu)},
                    {"clients", gpu.clients},
                    {"holders", gpu.holders},
                    {"waiters", gpu.waiters},
                    {"name", gpu.name}});
  }
  nlohmann::json clients = nlohmann::json::array();
  for (std::size_t i = 0; i < status.programs.size(); ++i) {
    const protocol::ProgramRow& client = status.programs[i];
    nlohmann::json touched = nlohmann::json::array();
    nlohmann::json memory = nlohmann::json::object();
    bool measured = false;
    for (const protocol::GpuRow& gpu : status.gpus) {
      const TaskRow* task = status.task(client.client, gpu.index);
      if (task == nullptr) continue;
      measured = measured || task->measured != 0;
      touched.push_back(uuid_text(gpu.uuid));
      const ServedHow how = served_how(task->mode);
      memory[uuid_text(gpu.uuid)] = {{"mode", how.option},
                                     {"reason", how.reason},
                                     {"source", source(task->measured != 0)},
                                     {"bytes", task->device_bytes},
                                     {"context_bytes", task->context_bytes},
                                     {"resident_bytes", task->resident_bytes}};
    }
    const auto session = std::ranges::find(status.sessions, client.session, &protocol::SessionRow::number);
    const auto sum = [&](std::uint64_t TaskRow::* bytes) { return status.sum(client.client, bytes); };
    clients.push_back({{"pid", client.pid},
                       {"uid", client.uid},
                       {"name", client.name},
                       {"holds", client.held_gpus != 0},
                       {"waits", client.wanted_gpus != 0},
                       {"session", session == status.sessions.end() ? nullptr : nlohmann::json(session->id)},
                       {"bytes", sum(&TaskRow::device_bytes)},
                       {"context_bytes", sum(&TaskRow::context_bytes)},
                       {"driver_bytes", measured_or_null(measured, sum(&TaskRow::driver_bytes))},
                       {"promised_bytes", sum(&TaskRow::promised_bytes)},
                       {"asked_bytes", sum(&TaskRow::asked_bytes)},
                       {"resident_bytes", sum(&TaskRow::resident_bytes)},
                       {"moved",
                        {{"out_bytes", client.moves.out_bytes},
                         {"out_ns", client.moves.out_ns},
                         {"in_bytes", client.moves.in_bytes},
                         {"in_ns", client.moves.in_ns},
                         {"spared_bytes", client.moves.spared_bytes}}},
                       {"overrun", client.overrun != 0},
                       {"use", use_json(status, client)},
                       {"since_ns", client.since_ns},
                       {"gpus", touched},
                       {"memory", memory}});
    if (i >= status.commands.size()) continue;
    clients.back()["user"] = status.commands[i].user;
    clients.back()["command"] = status.commands[i].command;
  }
  const auto limit = [](std::uint64_t bytes) {
    return bytes == protocol::kUnlimited ? nlohmann::json(nullptr) : nlohmann::json(bytes);
  };
  nlohmann::json limits = nlohmann::json::array();
  for (const protocol::AccountRow& account : status.accounts) {
    limits.push_back({{"of", account.name},
                      {"clients", account.clients},
                      {"gpu_limit_bytes", limit(account.device_limit)},
                      {"gpu_bytes", account.device_used},
                      {"host_limit_bytes", limit(account.host_limit)},
                      {"host_bytes", account.host_used},
                      {"host_swap_bytes", account.host_swap_bytes},
                      {"host_spare_bytes", account.host_spare_bytes}});
  }
  nlohmann::json without = nlohmann::json::array();
  for (const Uncovered& one : status.uncovered) {
    without.push_back({{"pid", one.process},
                       {"command", one.command},
                       {"limited", one.limited},
                       {"why", one.why},
                       {"remedy", one.remedy}});
  }
  nlohmann::json elsewhere = nlohmann::json::array();
  for (const GpuHolder& holder : status.elsewhere) {
    elsewhere.push_back({{"uuid", holder.gpu},
                         {"name", holder.name},
                         {"pid", holder.pid},
                         {"uid", holder.uid},
                         {"user", holder.user},
                         {"socket", holder.socket},
                         {"programs", holder.programs},
                         {"machine", holder.machine},
                         {"answers", holder.how == Holding::kAnswers},
                         {"file", holder.file}});
  }
  nlohmann::json sessions = nlohmann::json::array();
  for (const protocol::SessionRow& session : status.sessions) {
    sessions.push_back({{"id", session.id}, {"programs", session.programs}});
  }
  nlohmann::json gangs = nlohmann::json::array();
  for (const protocol::GangRow& gang : status.gangs) {
    gangs.push_back({{"number", gang.number},
                     {"name", gang.name},
                     {"why", gang_why(gang)},
                     {"programs", gang.programs},
                     {"size", gang.size == 0 ? nlohmann::json(nullptr) : nlohmann::json(gang.size)},
                     {"drains", gang.drains != 0},
                     {"apart", gang.apart != protocol::GangApart::kNo}});
  }
  const nlohmann::json whole = {{"daemon",
                                 {{"pid", status.daemon.pid},
                                  {"socket", socket},
                                  {"version", status.daemon.rota_version},
                                  {"grants", status.daemon.grants},
                                  {"quantum_ns", status.daemon.quantum_ns},
                                  {"mode", scheduler::mode_name(status.daemon.mode)}}},
                                {"gpus", gpus},
                                {"elsewhere", elsewhere},
                                {"clients", clients},
                                {"gangs", gangs},
                                {"sessions", sessions},
                                {"limits", limits},
                                {"without_rota", without}};
  // A program's name may be any bytes.
  return whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string status_as_text(const Status& status, const std::string& socket) {
  std::string text =
      fmt::format("rotad pid {} at {}: {} mode, quantum {}, {} grants so far\n", status.daemon.pid, socket,
                  scheduler::mode_name(status.daemon.mode),
                  scheduler::quantum_text(std::chrono::nanoseconds(status.daemon.quantum_ns)), status.daemon.grants);
  for (const GpuHolder& holder : status.elsewhere) text += holder_text(holder) + "\n";
  if (!status.elsewhere.empty() || status.gpus.empty()) text += without_turns_text(status);
  if (status.gpus.empty()) {
    const bool nobody = status.elsewhere.empty() && status.programs.empty();
    text += nobody ? nobody_text(status.processes) : "this rotad has no GPU\n";
  }
  for (const protocol::GpuRow& gpu : status.gpus) {
    text += fmt::format("\nGPU {}  {}  {}\n  {} of {} allocated by {} program{}; {} hold{} it, {} wait{}\n", gpu.number,
                        gpu.name, uuid_text(gpu.uuid), size_text(gpu.used_bytes), size_text(gpu.total_bytes),
                        gpu.clients, gpu.clients == 1 ? "" : "s", gpu.holders, gpu.holders == 1 ? "s" : "", gpu.waiters,
                        gpu.waiters == 1 ? "s" : "");
    text += gpu.measured != 0 ? fmt::format("  {} in use and {} free, measured", size_text(gpu.driver_used_bytes),
                                            size_text(gpu.driver_free_bytes))
                              : "  memory in use is not measured, only what programs report is known";
    text += fmt::format("{}\n", outside_text(gpu));
    if (const std::string sharing = sharing_text(gpu); !sharing.empty()) text += fmt::format("  {}\n", sharing);
    if (gpu.handed_over_bytes != 0) {
      text += fmt::format("  {} handed over from program to program so far\n", size_text(gpu.handed_over_bytes));
    }
    for (std::size_t i = 0; i < status.programs.size(); ++i) {
      const protocol::ProgramRow& client = status.programs[i];
      const TaskRow* task = status.task(client.client, gpu.index);
      if (task == nullptr) continue;
      const bool holds = task->holds != 0;
      const char* doing = task->waits != 0 ? "waits" : holds ? "holds" : "idle";
      std::string more;
      if (task->mode != protocol::MemoryMode::kUnknown) {
        const ServedHow how = served_how(task->mode);
        more += fmt::format(", memory: {}", how.mode);
        if (!how.reason.empty()) more += fmt::format(" ({})", how.reason);
        if (task->mode == protocol::MemoryMode::kSwap) more += swap_text(client, *task) + staying_text(task, holds);
      }
      more += fmt::format(", contexts and modules: {} {}", size_text(task->context_bytes),
                          task->measured != 0 ? "measured" : "assumed");
      if (task->gang != 0) more += fmt::format(", gang {}", task->gang);
      if (task->asked_bytes != 0) more += fmt::format(", waits for room for {}", size_text(task->asked_bytes));
      if (task->awaited_bytes != 0) {
        more += fmt::format(", an allocation of {} has waited {:.1f} s for others to free memory or end",
                            size_text(task->awaited_bytes), static_cast<double>(task->awaited_ns) / 1e9);
      }
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
  }
  if (!status.gangs.empty()) text += "\nGangs: programs that have their turns together\n";
  for (const protocol::GangRow& gang : status.gangs) {
    text += fmt::format("  {}  {}: {}{} program{}, {}{}\n", gang.number, report::printable(gang.name), gang.programs,
                        gang.size == 0 ? "" : fmt::format(" of {}", gang.size), gang.programs == 1 ? "" : "s",
                        gang_why(gang), gang_doing(gang));
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
      line += fmt::format("  {} there for swapping, {} of it spare", size_text(account.host_swap_bytes),
                          size_text(account.host_spare_bytes));
    }
    text += fmt::format("  {}, {} program{}:{}\n", account.name, account.clients, account.clients == 1 ? "" : "s",
                        line.empty() ? "  no limit of its own" : line);
  }
  std::vector<std::string> remedies;
  for (const Uncovered& one : status.uncovered) {
    if (std::ranges::find(remedies, one.remedy) == remedies.end()) remedies.emplace_back(one.remedy);
  }
  // Those for whom the same helps, together.
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

void register_status(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  CLI::App* status = app.add_subcommand("status", "show GPUs, who holds them and who waits");
  status->add_flag("--json", *json, "for programs");
  status->callback([json] { throw CLI::RuntimeError(show(*json)); });
}

}  // namespace rota::tool
