#include "tools/rota/top/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "scheduler/base/byte_text.h"
#include "scheduler/base/uuid.h"
#include "scheduler/core/settings.h"
#include "tools/rota/status/sharing.h"
#include "tools/rota/status/words.h"

namespace rota::top {
namespace {

using protocol::GpuRow;
using protocol::ProgramRow;
using protocol::TaskRow;

std::uint64_t moved(const protocol::Moves& moves) {
  return moves.out_bytes + moves.in_bytes;
}

const tool::MachineGpu* on_machine(const tool::Status& status, const std::string& uuid) {
  const auto found = std::ranges::find(status.machine, uuid, &tool::MachineGpu::uuid);
  return found == status.machine.end() ? nullptr : &*found;
}

Gpu served_gpu(const tool::Status& status, const GpuRow& row) {
  Gpu gpu{.number = row.number,
          .name = row.name,
          .busy_percent = {},
          .used_bytes = row.measured != 0 ? row.driver_used_bytes : row.used_bytes,
          .total_bytes = row.total_bytes,
          .programs = row.clients,
          .holders = row.holders,
          .waiters = row.waiters,
          .note = tool::sharing_text(row)};
  if (const tool::MachineGpu* const known = on_machine(status, uuid_text(row.uuid))) {
    gpu.busy_percent = known->busy_percent;
    if (row.measured == 0) gpu.used_bytes = known->used_bytes;
  }
  if (row.outside_bytes != 0) {
    const std::string others = fmt::format("{} by programs without rota", bytes_text(row.outside_bytes));
    gpu.note = gpu.note.empty() ? others : others + "; " + gpu.note;
  }
  return gpu;
}

Gpu bare_gpu(const tool::MachineGpu& known) {
  return {.number = known.number,
          .name = known.name,
          .busy_percent = known.busy_percent,
          .used_bytes = known.used_bytes,
          .total_bytes = known.total_bytes};
}

Gpu other_gpu(const tool::Status& status, const tool::MachineGpu& known) {
  Gpu gpu = bare_gpu(known);
  gpu.note = "no program uses it under this rotad";
  for (const tool::GpuHolder& holder : status.elsewhere) {
    if (holder.gpu == known.uuid) {
      gpu.note =
          holder.user.empty() ? "another rotad has it" : fmt::format("another rotad has it, that of {}", holder.user);
    }
  }
  return gpu;
}

std::vector<Gpu> gpus_of(const tool::Status& status) {
  std::vector<Gpu> gpus;
  std::set<std::string> served;
  for (const GpuRow& row : status.gpus) {
    gpus.push_back(served_gpu(status, row));
    served.insert(uuid_text(row.uuid));
  }
  for (const tool::MachineGpu& known : status.machine) {
    if (!served.contains(known.uuid)) gpus.push_back(other_gpu(status, known));
  }
  std::ranges::stable_sort(gpus, {}, &Gpu::number);
  return gpus;
}

std::string detail_of(const tool::Status& status, const TaskRow& task, const GpuRow& gpu) {
  std::vector<std::string> parts = tool::waits_of(status, task);
  if (task.overrun != 0) parts.emplace_back("did not give the GPU back in time: others run at the same time");
  if (task.gang != 0) parts.push_back(fmt::format("gang {}", task.gang));
  if (task.mode != protocol::MemoryMode::kUnknown) {
    const tool::ServedHow how = tool::served_how(task.mode);
    std::string memory = fmt::format("memory: {}", how.mode);
    if (!how.reason.empty()) memory += fmt::format(" ({})", how.reason);
    if (task.mode == protocol::MemoryMode::kSwap) memory += tool::staying_text(&task, task.holds != 0);
    parts.push_back(memory);
  }
  if (std::string use = tool::use_text(&task, gpu); !use.empty()) parts.push_back(std::move(use));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Which part of its memory is on the GPU and which is not, as far as rota knows.
void place_memory(Row& row, const TaskRow& task) {
  using protocol::MemoryMode;
  switch (task.mode) {
    case MemoryMode::kSwap:
      row.resident_bytes = std::min(task.resident_bytes, task.device_bytes);
      row.out_bytes = task.device_bytes - *row.resident_bytes;
      break;
    case MemoryMode::kNativeChosen:
    case MemoryMode::kNativeNoManaged:
    case MemoryMode::kNativeNoPaging:
    case MemoryMode::kNativeShared:
    case MemoryMode::kNativeWatched:
      row.resident_bytes = task.device_bytes;
      row.out_bytes = 0;
      break;
    default:  // the driver moves pages of Unified Memory
      break;
  }
}

Row row_of(const tool::Status& status, std::size_t program, const TaskRow& task, const GpuRow& gpu) {
  const ProgramRow& client = status.programs[program];
  Row row{
      .gpu = gpu.number, .pid = client.pid, .user = {}, .session = tool::session_of(client), .command = client.name};
  if (program < status.commands.size()) {
    row.user = status.commands[program].user;
    row.command = status.commands[program].command;
  }
  row.doing = task.waits != 0 ? Doing::kWaits : task.holds != 0 ? Doing::kHolds : Doing::kIdle;
  row.since_ns = row.doing == Doing::kIdle ? 0 : task.since_ns;
  if ((task.known & protocol::kKnowsBusy) != 0) row.busy_part = task.busy_permille / 1000.0;
  row.held_ns = task.held_ns;
  row.waited_ns = task.waited_ns;
  row.allocated_bytes = task.device_bytes;
  place_memory(row, task);
  row.moved_bytes = moved(client.moves);
  row.detail = detail_of(status, task, gpu);
  return row;
}

}  // namespace

View Viewer::view(const Finding& finding, std::chrono::steady_clock::time_point now) {
  View view;
  view.problem = finding.problem;
  if (!finding.status) {
    for (const tool::MachineGpu& known : finding.machine) view.gpus.push_back(bare_gpu(known));
    before_.clear();
    rotad_ = 0;
    return view;
  }
  const tool::Status& status = *finding.status;
  const double passed = std::chrono::duration<double>(now - when_).count();
  const bool again = rotad_ == status.daemon.pid && passed > 0;
  view.daemon =
      fmt::format("rotad pid {}: {} mode, quantum {}", status.daemon.pid, scheduler::mode_name(status.daemon.mode),
                  scheduler::quantum_text(std::chrono::nanoseconds(status.daemon.quantum_ns)));
  if (again && status.daemon.grants >= grants_) {
    view.daemon += fmt::format(", {:.0f} grants/s", static_cast<double>(status.daemon.grants - grants_) / passed);
  }
  for (const tool::GpuHolder& holder : status.elsewhere) {
    // Those that NVML shows have a line of their own.
    if (on_machine(status, holder.gpu) == nullptr) view.notices.push_back(tool::holder_text(holder));
  }
  view.gpus = gpus_of(status);
  decltype(before_) now_known;
  std::map<std::uint32_t, std::size_t> programs;
  for (std::size_t i = 0; i < status.programs.size(); ++i) programs[status.programs[i].client] = i;
  for (const TaskRow& task : status.tasks) {
    const auto program = programs.find(task.client);
    const auto gpu = std::ranges::find(status.gpus, task.gpu, &GpuRow::index);
    if (program == programs.end() || gpu == status.gpus.end()) continue;
    Row& row = view.rows.emplace_back(row_of(status, program->second, task, *gpu));
    const std::pair key{task.client, task.gpu};
    const auto before = before_.find(key);
    if (again && before != before_.end()) {
      const auto since = [](std::uint64_t is, std::uint64_t was) {
        return static_cast<double>(is > was ? is - was : 0);
      };
      row.held_part = std::min(1.0, since(row.held_ns, before->second.held_ns) / 1e9 / passed);
      row.moved_rate = since(row.moved_bytes, before->second.moved_bytes) / passed;
    }
    now_known[key] = {row.held_ns, row.moved_bytes};
  }
  before_ = std::move(now_known);
  rotad_ = status.daemon.pid;
  grants_ = status.daemon.grants;
  when_ = now;
  return view;
}

}  // namespace rota::top
