// `rota status --json`, as status.schema.json describes it.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "scheduler/base/printable.h"
#include "scheduler/base/uuid.h"
#include "scheduler/core/settings.h"
#include "tools/rota/status/sharing.h"
#include "tools/rota/status/status.h"
#include "tools/rota/status/words.h"

namespace rota::tool {

using protocol::TaskRow;

namespace {

// The version of status.schema.json: incremented with each change that may break a reader of the previous version.
// Additions do not increment it.
constexpr int kSchemaVersion = 1;

// Where a figure for a client's memory comes from.
const char* source(bool measured) {
  return measured ? "measured" : "reported";
}

nlohmann::json measured_or_null(bool measured, std::uint64_t bytes) {
  return measured ? nlohmann::json(bytes) : nlohmann::json(nullptr);
}

nlohmann::json text_or_null(const char* text) {
  return *text == '\0' ? nlohmann::json(nullptr) : nlohmann::json(text);
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
    bool waits = false;
    for (const protocol::GpuRow& gpu : status.gpus) {
      const TaskRow* task = status.task(client.client, gpu.index);
      if (task == nullptr) continue;
      measured = measured || task->measured != 0;
      waits = waits || task->waits != 0;
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
                       {"waits", waits},
                       {"session", session == status.sessions.end() ? nullptr : nlohmann::json(session->id)},
                       {"session_name", text_or_null(client.session_name)},
                       {"container", text_or_null(client.container)},
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
    clients.back()["stopped"] = i < status.commands.size() && status.commands[i].stopped != 0;
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
  nlohmann::json reservations = nlohmann::json::array();
  for (const protocol::ReservationRow& each : status.reservations) {
    const bool hidden = each.uid == protocol::kHiddenUser;
    reservations.push_back({{"uuid", uuid_text(each.uuid)},
                            {"pid", each.pid},
                            {"uid", each.uid},
                            {"user", hidden ? nlohmann::json(nullptr) : nlohmann::json(user_name(each.uid))},
                            {"left_ns", each.left_ns}});
  }
  nlohmann::json machine = nlohmann::json::array();
  for (const MachineGpu& gpu : status.machine) {
    nlohmann::json others = nlohmann::json::array();
    for (const auto& [pid, bytes] : gpu.processes) {
      const StatusProgram program = program_of(pid);
      if (program.command.empty()) continue;
      others.push_back({{"pid", pid}, {"name", printable(program.command)}, {"user", program.user}, {"bytes", bytes}});
    }
    machine.push_back(
        {{"index", gpu.number},
         {"uuid", gpu.uuid},
         {"name", gpu.name},
         {"total_bytes", gpu.total_bytes},
         {"used_bytes", gpu.used_bytes},
         {"other_processes", others},
         {"busy_percent", gpu.busy_percent ? nlohmann::json(*gpu.busy_percent) : nlohmann::json(nullptr)}});
  }
  const nlohmann::json whole = {{"schema_version", kSchemaVersion},
                                {"machine_gpus", machine},
                                {"daemon",
                                 {{"pid", status.daemon.pid},
                                  {"socket", socket},
                                  {"version", status.daemon.rota_version},
                                  {"grants", status.daemon.grants},
                                  {"quantum_ns", status.daemon.quantum_ns},
                                  {"nvml_released", status.daemon.nvml_released != 0},
                                  {"mode", scheduler::mode_name(status.daemon.mode)}}},
                                {"gpus", gpus},
                                {"elsewhere", elsewhere},
                                {"clients", clients},
                                {"gangs", gangs},
                                {"sessions", sessions},
                                {"limits", limits},
                                {"reservations", reservations},
                                {"without_rota", without}};
  // A program's name may be any bytes.
  return whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace rota::tool
