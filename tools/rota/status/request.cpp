// Packets to and from rotad, checked as rotad checks ours.
#include "tools/rota/status/request.h"

#include <poll.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>

#include "scheduler/address/unresponsive.h"
#include "scheduler/base/printable.h"
#include "scheduler/base/uuid.h"
#include "scheduler/protocol/rows.h"

namespace rota::tool {

using namespace std::chrono_literals;
using protocol::Kind;
using protocol::Message;

std::vector<std::string> served(const Status& status) {
  std::vector<std::string> gpus;
  for (const protocol::GpuRow& gpu : status.gpus) gpus.push_back(uuid_text(gpu.uuid));
  return gpus;
}

bool send_message(int descriptor, const Message& message) {
  ssize_t sent;
  do {
    sent = send(descriptor, &message, protocol::bytes_of(message.kind), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(protocol::bytes_of(message.kind));
}

namespace {

// While rotad does not answer: how often it is checked whether its process is stopped, and how many checks in a row
// must find it so. A debugger stops a process for moments only.
constexpr auto kBetweenChecks = 100ms;
constexpr int kStoppedInARow = 4;

// Whether something can be read before the time is over; false at once if rotad is stopped.
bool answers(int descriptor, std::chrono::steady_clock::time_point until) {
  const protocol::Listener rotad = protocol::listener_of(descriptor);
  for (int stopped = 0; stopped < kStoppedInARow;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left <= 0ms) return false;
    pollfd ready{descriptor, POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(std::min<std::chrono::milliseconds>(left, kBetweenChecks).count())) > 0) {
      return true;
    }
    stopped = protocol::stopped_state(rotad.pid) != 0 ? stopped + 1 : 0;
  }
  return false;
}

}  // namespace

bool receive_message(int descriptor, Message& message) {
  const auto until = std::chrono::steady_clock::now() + kAnswerPatience;
  while (answers(descriptor, until)) {
    message = {};
    const ssize_t length = recv(descriptor, &message, sizeof message, MSG_DONTWAIT);
    if (length < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    return length >= static_cast<ssize_t>(protocol::kHeaderBytes) && message.magic == protocol::kMagic &&
           message.version >= protocol::kOldestVersion && message.version <= protocol::kVersion;
  }
  return false;
}

Answer ask_status(int descriptor, std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  if (!send_message(descriptor, Message{.kind = Kind::kStatus})) return {};
  Status status{};
  while (true) {
    Message row;  // fields that a rotad of another version omits are zero, those that it adds are cut off
    if (!answers(descriptor, until)) return {.status = std::nullopt, .silent = true};
    const ssize_t length = recv(descriptor, &row, sizeof row, MSG_DONTWAIT);
    if (length < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (length < static_cast<ssize_t>(protocol::kHeaderBytes) || row.magic != protocol::kMagic) return {};
    if (row.version < protocol::kOldestVersion || row.version > protocol::kVersion) return {};
    switch (protocol::add_row(status, row)) {
      case protocol::RowAdded::kYes:
        break;
      case protocol::RowAdded::kLast:
        return {.status = std::move(status)};
      case protocol::RowAdded::kNone:
        return {};
    }
  }
}

std::string skipped_text(const protocol::SocketSearch& search) {
  if (search.skipped_count == 0) return {};
  std::string places;
  for (std::size_t i = 0; i < search.skipped_count; ++i) {
    const std::string path = search.skipped[i].path;
    places += (i == 0 ? "" : " and ") + path.substr(0, path.rfind('/'));
  }
  return places + (search.skipped_count == 1 ? " was" : " were") +
         " skipped: another user owns it or can write to it; remove it";
}

std::string user_name(std::uint32_t uid) {
  const passwd* const user = getpwuid(uid);
  return user != nullptr ? user->pw_name : "uid " + std::to_string(uid);
}

void find_programs(Status& status) {
  for (const protocol::ProgramRow& client : status.programs) {
    StatusProgram& program = status.commands.emplace_back();
    if (client.uid == protocol::kHiddenUser) {
      program.command = client.name;
      continue;
    }
    program.user = user_name(client.uid);
    const std::string folder = "/proc/" + std::to_string(client.pid);
    struct stat owner{};
    if (stat(folder.c_str(), &owner) == 0 && owner.st_uid == client.uid) {
      std::ifstream file(folder + "/cmdline", std::ios::binary);
      program.command.assign(std::istreambuf_iterator<char>(file), {});
      while (program.command.ends_with('\0')) program.command.pop_back();
      std::ranges::replace(program.command, '\0', ' ');  // between its arguments
      program.command = printable(program.command);
      program.stopped = protocol::stopped_state(client.pid);
    }
    if (program.command.empty()) program.command = client.name;
  }
}

StatusProgram program_of(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  StatusProgram program;
  struct stat owner{};
  if (stat(folder.c_str(), &owner) != 0) return program;
  program.user = user_name(owner.st_uid);
  std::ifstream file(folder + "/comm");
  std::getline(file, program.command);
  return program;
}

void leave_out_clients(Status& status) {
  for (MachineGpu& gpu : status.machine) {
    for (const protocol::ProgramRow& client : status.programs) {
      if (client.pid != 0) gpu.processes.erase(client.pid);
    }
    const auto row =
        std::ranges::find_if(status.gpus, [&](const auto& each) { return uuid_text(each.uuid) == gpu.uuid; });
    if (row == status.gpus.end()) continue;
    const bool unseen = std::ranges::any_of(status.programs, [&](const protocol::ProgramRow& client) {
      return client.pid == 0 && status.task(client.client, row->index) != nullptr;
    });
    if (unseen) gpu.processes.clear();
  }
}

}  // namespace rota::tool
