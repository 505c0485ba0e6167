#include "tools/rota/ci/room.h"

#include <algorithm>
#include <numeric>

#include "scheduler/base/descriptor.h"
#include "scheduler/base/uuid.h"

namespace rota::ci {

Load room_of(const Load& totals, const tool::Status& status, const std::vector<std::int32_t>& own) {
  Load room = totals;
  for (const protocol::GpuRow& gpu : status.gpus) {
    const auto found = room.find(uuid_text(gpu.uuid));
    if (found == room.end()) continue;
    std::uint64_t others = 0;
    for (const protocol::ProgramRow& program : status.programs) {
      const protocol::TaskRow* task = status.task(program.client, gpu.index);
      if (task == nullptr || std::ranges::find(own, program.pid) != own.end()) continue;
      others += task->device_bytes + task->context_bytes;
    }
    others += gpu.outside_bytes;
    found->second -= std::min(others, found->second);
  }
  return room;
}

std::map<std::int32_t, std::set<std::string>> leaving_of(const tool::Status& status) {
  std::map<std::int32_t, std::set<std::string>> leaving;
  for (const protocol::ProgramRow& program : status.programs) {
    for (const protocol::GpuRow& gpu : status.gpus) {
      const protocol::TaskRow* task = status.task(program.client, gpu.index);
      if (task != nullptr && protocol::can_leave(task->mode)) {
        leaving[program.pid].insert(uuid_text(gpu.uuid));
      }
    }
  }
  return leaving;
}

const std::set<std::string>& Room::leaving(std::uint32_t pid) const {
  static const std::set<std::string> kNone;
  const auto found = leaving_.find(static_cast<std::int32_t>(pid));
  return found != leaving_.end() ? found->second : kNone;
}

void Room::gpu(const std::string& uuid, std::uint64_t total) {
  std::uint64_t& known = totals_[uuid];
  known = std::max(known, total);
}

Load Room::bytes() {
  if (totals_.empty()) return {};
  const Descriptor rotad(protocol::find_rotad().descriptor);
  const auto status = rotad ? tool::request_status(rotad.get()) : std::nullopt;
  leaving_ = status ? leaving_of(*status) : std::map<std::int32_t, std::set<std::string>>();
  if (!status) return totals_;
  std::vector<std::int32_t> own;
  for (const auto& process : identify_.running()) own.push_back(static_cast<std::int32_t>(process.account.self.pid));
  return room_of(totals_, *status, own);
}

Needs needs_of(const report::BaselineEntry& entry) {
  if (entry.added_bytes) return {*entry.added_bytes};
  if (!entry.gpu_peak_bytes.empty()) return entry.gpu_peak_bytes;
  return {std::max(entry.use.peak_bytes, entry.use.reserved_peak_bytes)};
}

std::uint64_t sum_of(const Needs& needs) {
  return std::accumulate(needs.begin(), needs.end(), std::uint64_t{0});
}

void add_used(Load& sum, Load& staying, const report::ProcessAccount& process, const std::set<std::string>& leaving) {
  for (const report::GpuRecord& gpu : process.gpus) {
    // Its memory in addition to its allocations changes little.
    const std::uint64_t beside =
        gpu.reserved_peak_bytes > gpu.peak_bytes ? gpu.reserved_peak_bytes - gpu.peak_bytes : 0;
    sum[gpu.uuid] += gpu.used_bytes + beside;
    staying[gpu.uuid] += leaving.contains(gpu.uuid) ? beside : gpu.used_bytes + beside;
  }
}

}  // namespace rota::ci
