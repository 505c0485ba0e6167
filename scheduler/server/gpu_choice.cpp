#include "scheduler/server/gpu_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "scheduler/rules/most_room.h"

namespace rota::server {

Result<std::vector<Uuid>> GpuChoice::choose(const Chooser& who, std::vector<Gpu> gpus, std::size_t count,
                                            std::chrono::nanoseconds now) {
  const auto is_own = [&](const Reserved& each) { return each.who.session == who.session && each.who.pid == who.pid; };
  forget_late(now);
  const auto of_user = std::ranges::count_if(
      reserved_, [&](const Reserved& each) { return each.who.payer == who.payer && !is_own(each); });
  if (static_cast<std::size_t>(of_user) + count > kMostOfUser) {
    return Error{fmt::format(
        "{} GPUs are reserved for programs of this user that are about to start, and {} is the most: wait until some "
        "use their GPUs, or a minute",
        of_user, kMostOfUser)};
  }
  std::erase_if(reserved_, is_own);
  std::vector<protocol::GpuRoom> rooms;
  for (const Gpu& gpu : gpus) {
    const std::size_t coming = reserved(gpu.uuid, now);
    const auto taken =
        static_cast<std::int64_t>(gpu.taken_bytes + coming * (gpu.total_bytes / protocol::kReservedPart));
    rooms.push_back({.bytes = static_cast<std::int64_t>(gpu.total_bytes) - taken,
                     .programs = gpu.programs + static_cast<std::uint32_t>(coming)});
  }
  std::vector<Uuid> chosen;
  for (const std::size_t place : protocol::most_room(rooms, count)) {
    chosen.push_back(gpus[place].uuid);
    reserved_.push_back({who, gpus[place].uuid, now + kExpected});
  }
  return chosen;
}

void GpuChoice::came(pid_t pid, const std::vector<std::string>& sessions, const Uuid& uuid) {
  const auto of_session = [&](const Reserved& each) {
    return each.uuid == uuid && std::ranges::find(sessions, each.who.session) != sessions.end();
  };
  auto found = std::ranges::find_if(
      reserved_, [&](const Reserved& each) { return of_session(each) && each.who.pid == pid && pid != 0; });
  if (found == reserved_.end()) found = std::ranges::find_if(reserved_, of_session);
  if (found != reserved_.end()) reserved_.erase(found);
}

void GpuChoice::left(pid_t pid) {
  if (pid == 0) return;
  std::erase_if(reserved_, [&](const Reserved& each) { return each.who.pid == pid; });
}

const std::vector<GpuChoice::Reserved>& GpuChoice::all(std::chrono::nanoseconds now) {
  forget_late(now);
  return reserved_;
}

std::size_t GpuChoice::reserved(const Uuid& uuid, std::chrono::nanoseconds now) {
  forget_late(now);
  return static_cast<std::size_t>(std::ranges::count(reserved_, uuid, &Reserved::uuid));
}

void GpuChoice::forget_late(std::chrono::nanoseconds now) {
  std::erase_if(reserved_, [&](const Reserved& each) { return each.until <= now; });
}

}  // namespace rota::server
