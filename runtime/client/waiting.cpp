#include "runtime/client/waiting.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "runtime/core/log.h"
#include "scheduler/address/socket_path.h"
#include "scheduler/address/unresponsive.h"
#include "scheduler/base/byte_text.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/base/paced_lines.h"
#include "scheduler/base/printable.h"
#include "scheduler/protocol/rows.h"

namespace rota::client {

namespace {

using protocol::Kind;
using protocol::Message;
using protocol::ProgramRow;
using protocol::Snapshot;
using protocol::TaskRow;

constexpr std::chrono::seconds kLines[] = {std::chrono::seconds(1), std::chrono::seconds(10), std::chrono::seconds(60)};

// A program that waits all the time fills no log. A judgment.
constexpr std::chrono::minutes kEachWaitLine{10};

// Reads only /etc/passwd: the C library would load modules for other sources into somebody else's program.
std::string user_name(std::uint32_t uid) {
  const Descriptor file(::open("/etc/passwd", O_RDONLY | O_CLOEXEC));
  std::string text(1 << 16, '\0');
  const ssize_t length = file ? ::read(file.get(), text.data(), text.size()) : 0;
  std::string_view rest(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  const std::string wanted = std::to_string(uid);
  while (!rest.empty()) {  // name:password:uid:…
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::size_t name = line.find(':');
    const std::size_t password = name == std::string_view::npos ? name : line.find(':', name + 1);
    if (password == std::string_view::npos) continue;
    const std::string_view number = line.substr(password + 1, line.find(':', password + 1) - password - 1);
    if (number == wanted) return std::string(line.substr(0, name));
  }
  return "uid " + wanted;
}

std::string name_of(const ProgramRow& client, bool pids_agree) {
  if (client.uid == protocol::kHiddenUser) return client.name;
  const std::string name = fmt::format("({}, {})", client.name, user_name(client.uid));
  return pids_agree ? fmt::format("pid {} {}", client.pid, name) : "another program " + name;
}

struct Asked {
  Snapshot rows;
  std::string silent;  // what is wrong with a rotad that does not answer
};

// Where this process's rotad may listen. In the child of a fork the mutex may stay locked for ever, so nobody waits for
// it: only lines about waits depend on it.
struct Places {
  std::mutex mutex;
  std::optional<protocol::SocketCandidates> known;
};
constinit Places places;

protocol::SocketSearch find_rotad() {
  std::optional<protocol::SocketCandidates> known;
  {
    const std::unique_lock lock(places.mutex, std::try_to_lock);
    if (lock) known = places.known;
  }
  return protocol::search_rotad(known ? *known : protocol::socket_candidates());
}

Asked ask_rotad(std::chrono::milliseconds patience = std::chrono::milliseconds(500)) {
  Asked asked;
  const protocol::SocketSearch search = find_rotad();
  const Descriptor rotad(search.descriptor);
  if (!rotad) return asked;
  const timeval timeout{.tv_sec = 0, .tv_usec = std::chrono::microseconds(patience).count()};
  setsockopt(rotad.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  const Message request{.kind = Kind::kStatus};
  const std::size_t bytes = protocol::bytes_of(request.kind);
  if (::send(rotad.get(), &request, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) return asked;
  const auto until = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < until) {
    Message row;
    const ssize_t length = ::recv(rotad.get(), &row, sizeof row, 0);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && errno == EAGAIN) {
      asked.silent = protocol::unresponsive_text(search.candidate.path, protocol::listener_of(rotad.get()));
    }
    if (length < static_cast<ssize_t>(protocol::kHeaderBytes) || row.magic != protocol::kMagic) break;
    if (protocol::add_row(asked.rows, row) != protocol::RowAdded::kYes) break;
  }
  return asked;
}

// The three of the others that have most, and how many more have any.
template <typename BytesOf>
std::string most_of(const std::vector<ProgramRow>& programs, std::int32_t own_pid, BytesOf bytes) {
  constexpr std::size_t kNamed = 3;
  const bool known = std::ranges::any_of(programs, [&](const auto& program) { return program.pid == own_pid; });
  std::vector<ProgramRow> others;
  for (const auto& program : programs) {
    const bool own = known && program.pid == own_pid;
    if (!own && bytes(program) != 0) others.push_back(program);
  }
  std::ranges::stable_sort(others, std::ranges::greater(), bytes);
  std::string text;
  for (std::size_t i = 0; i < std::min(others.size(), kNamed); ++i) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(others[i], known), bytes_text(bytes(others[i])));
  }
  if (others.size() > kNamed) text += fmt::format(" and {} more", others.size() - kNamed);
  return text;
}

// As people call it.
std::uint32_t number_of(const Snapshot& all, std::uint32_t index) {
  const auto gpu = std::ranges::find(all.gpus, index, &protocol::GpuRow::index);
  return gpu != all.gpus.end() ? gpu->number : index;
}

}  // namespace

std::optional<std::chrono::nanoseconds> Waiting::stands(std::chrono::nanoseconds so_long) {
  if (!log::enabled(log::Level::kWarn)) return std::nullopt;
  std::size_t said = said_.load(std::memory_order_relaxed);
  if (said < std::size(kLines) && so_long >= kLines[said] && said_.compare_exchange_strong(said, said + 1)) {
    const std::string whom = for_whom_();
    if (said == 0) {
      log::warn("waiting for {}{}", whom, more_);
    } else {
      log::warn("waiting for {}, for {} s now{}", whom, kLines[said].count(), more_);
    }
    ++said;
  }
  return said < std::size(kLines) ? std::optional<std::chrono::nanoseconds>(kLines[said]) : std::nullopt;
}

void WaitLines::stands(std::chrono::nanoseconds so_long, FunctionRef<std::string()> for_whom) {
  if (said_ == std::size(kLines) || so_long < kLines[said_] || !log::enabled(log::Level::kWarn)) return;
  const std::chrono::seconds line = kLines[said_++];
  std::optional<unsigned> left_out;
  {
    static std::mutex mutex;
    static PacedLines lines(kEachWaitLine);
    const std::lock_guard lock(mutex);
    left_out = lines.next(std::chrono::steady_clock::now().time_since_epoch());
  }
  if (!left_out) return;
  log::warn("waiting for {}{}; `rota status` says more{}", for_whom(),
            said_ == 1 ? "" : fmt::format(", for {} s now", line.count()),
            *left_out == 0 ? "" : fmt::format(" ({} such lines are left out before this one)", *left_out));
}

void ask_at(const protocol::SocketCandidates& where) {
  const std::unique_lock lock(places.mutex, std::try_to_lock);
  if (lock) places.known = where;
}

std::string who_holds() {
  const Asked asked = ask_rotad();
  if (!asked.silent.empty()) return "its turn on a GPU: " + asked.silent;
  if (std::string room = room_for(asked.rows, getpid()); !room.empty()) return room;
  const std::string gang = gang_for(asked.rows, getpid());
  return gang.empty() ? holder_of(asked.rows, getpid()) : gang;
}

std::string who_has_memory(int gpu) {
  return memory_of(ask_rotad().rows, gpu, getpid());
}

std::string who_is_on(int gpu) {
  return present_of(ask_rotad(std::chrono::milliseconds(100)).rows, gpu, getpid());
}

std::string who_stays_for_now(int gpu) {
  return staying_of(ask_rotad().rows, gpu, getpid(), &TaskRow::fixed_for_now_bytes);
}

std::string who_stays(int gpu) {
  return staying_of(ask_rotad().rows, gpu, getpid(), &TaskRow::fixed_bytes);
}

std::optional<std::uint64_t> taken_for_good(const Uuid& uuid) {
  const Snapshot all = ask_rotad(std::chrono::milliseconds(250)).rows;
  const auto gpu = std::ranges::find(all.gpus, uuid, &protocol::GpuRow::uuid);
  if (gpu == all.gpus.end() || gpu->clients == 0) return std::nullopt;
  std::uint64_t bytes = gpu->outside_bytes;
  for (const TaskRow& task : all.tasks) {
    if (task.gpu != gpu->index) continue;
    bytes += task.context_bytes + task.fixed_bytes - std::min(task.fixed_bytes, task.fixed_for_now_bytes);
  }
  return bytes;
}

std::string memory_of(const Snapshot& all, int gpu, std::int32_t own_pid) {
  return most_of(all.programs, own_pid, [&](const ProgramRow& program) {
    const TaskRow* task = all.task(program.client, static_cast<std::uint32_t>(gpu));
    return task != nullptr ? task->device_bytes + task->context_bytes : 0;
  });
}

std::string staying_of(const Snapshot& all, int gpu, std::int32_t own_pid, std::uint64_t TaskRow::* bytes) {
  return most_of(all.programs, own_pid, [&](const ProgramRow& program) {
    const TaskRow* task = all.task(program.client, static_cast<std::uint32_t>(gpu));
    return task != nullptr ? task->*bytes : 0;
  });
}

std::string present_of(const Snapshot& all, int gpu, std::int32_t own_pid) {
  const auto bytes = [&](const ProgramRow& program) {
    const TaskRow* task = all.task(program.client, static_cast<std::uint32_t>(gpu));
    if (task == nullptr) return std::uint64_t{0};
    return task->mode == protocol::MemoryMode::kSwap ? task->resident_bytes : task->device_bytes;
  };
  std::string text = most_of(all.programs, own_pid, bytes);
  const bool known = std::ranges::any_of(all.programs, [&](const auto& program) { return program.pid == own_pid; });
  for (const ProgramRow& program : all.programs) {
    if (!known || program.pid == own_pid || bytes(program) == 0) continue;
    if (protocol::stopped_state(program.pid) != 0) {
      text += fmt::format("; pid {} is stopped: `kill -CONT {}` lets it go on", program.pid, program.pid);
    }
  }
  return text;
}

std::string gang_for(const Snapshot& all, std::int32_t own_pid) {
  for (const ProgramRow& program : all.programs) {
    if (program.pid != own_pid || program.wanted_gpus != 0 || program.held_gpus != 0) continue;
    for (const TaskRow& task : all.tasks) {
      if (task.client != program.client || task.gang == 0) continue;
      const auto gang = std::ranges::find(all.gangs, task.gang, &protocol::GangRow::number);
      if (gang == all.gangs.end() || gang->programs >= gang->size) continue;
      const std::uint32_t missing = gang->size - gang->programs;
      return fmt::format("{} of the {} programs of gang {}, which {} not come yet", missing, gang->size,
                         printable(gang->name), missing == 1 ? "has" : "have");
    }
  }
  return "";
}

std::string room_for(const Snapshot& all, std::int32_t own_pid) {
  for (const ProgramRow& program : all.programs) {
    if (program.pid != own_pid) continue;
    for (const TaskRow& task : all.tasks) {
      if (task.client != program.client || task.lacks_bytes == 0) continue;
      const std::string others = staying_of(all, static_cast<int>(task.gpu), own_pid, &TaskRow::fixed_bytes);
      // The thread waits at the gate, with a call that has memory of the program's in front of it, and not a new one.
      const bool for_good = task.lacks_bytes > task.lacks_for_now_bytes;
      return fmt::format("memory on GPU {}: {} of this program's memory do not fit next to {}{}{}{}",
                         number_of(all, task.gpu), bytes_text(task.lacks_bytes),
                         in_the_way_text(task.lacks_bytes, task.lacks_for_now_bytes), others.empty() ? "" : ": ",
                         others,
                         for_good ? "; since the program has that memory already, no call is refused for it, and it "
                                    "waits until others free theirs or end"
                                  : "");
    }
  }
  return "";
}

std::string holder_of(const Snapshot& all, std::int32_t own_pid) {
  if (all.programs.empty()) return "its turn on a GPU; no rotad says who holds it";
  const bool known = std::ranges::any_of(
      all.programs, [&](const auto& program) { return program.pid == own_pid && program.wanted_gpus != 0; });
  std::uint64_t wanted = 0;
  for (const auto& program : all.programs) {
    if (!known || program.pid == own_pid) wanted |= program.wanted_gpus;
  }
  if (!known && !std::has_single_bit(wanted)) return "its turn on a GPU";
  for (std::uint32_t gpu = 0; gpu < protocol::kMaxGpus; ++gpu) {
    if ((wanted >> gpu & 1) == 0) continue;
    std::string first;
    std::size_t others = 0;
    for (const auto& program : all.programs) {
      if ((known && program.pid == own_pid) || (program.held_gpus >> gpu & 1) == 0) continue;
      if (first.empty()) {
        first = name_of(program, known);
      } else {
        ++others;
      }
    }
    if (first.empty()) continue;
    return fmt::format("GPU {}, held by {}{}", number_of(all, gpu), first,
                       others == 0 ? "" : fmt::format(" and {} other program{}", others, others == 1 ? "" : "s"));
  }
  return "its turn on a GPU, which is about to become free";
}

}  // namespace rota::client
