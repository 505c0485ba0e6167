// Packets to and from rotad, checked as rotad checks ours.
#include "tools/rota/status/request.h"

#include <pwd.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>

#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>

namespace rota::tool {

using protocol::Kind;
using protocol::Message;

bool send_message(int descriptor, const Message& message) {
  ssize_t sent;
  do {
    sent = send(descriptor, &message, sizeof message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof message);
}

std::optional<Status> request_status(int descriptor) {
  const timeval patience{.tv_sec = 5, .tv_usec = 0};
  setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  Message request{.kind = Kind::kStatus};
  request.body.status_request.newest_version = protocol::kVersion;
  if (!send_message(descriptor, request)) return std::nullopt;
  Status status{};
  while (true) {
    Message row;  // fields that a rotad of another version leaves out are zero, those that it adds are cut off
    const ssize_t length = recv(descriptor, &row, sizeof row, 0);
    if (length < 0 && errno == EINTR) continue;
    if (length < static_cast<ssize_t>(protocol::kHeaderBytes) || row.magic != protocol::kMagic) return std::nullopt;
    if (row.version < protocol::kOldestVersion || row.version > protocol::kVersion) return std::nullopt;
    switch (row.kind) {
      case Kind::kStatusGpu:
        row.body.status_gpu.name[protocol::kNameLength - 1] = '\0';
        status.gpus.push_back(row.body.status_gpu);
        break;
      case Kind::kStatusClient:
        row.body.status_client.name[protocol::kNameLength - 1] = '\0';
        status.clients.push_back(row.body.status_client);
        break;
      case Kind::kStatusUse:
        status.uses.push_back(row.body.status_use);
        break;
      case Kind::kStatusAccount:
        row.body.status_account.name[protocol::kTextLength - 1] = '\0';
        status.accounts.push_back(row.body.status_account);
        break;
      case Kind::kStatusEnd:
        row.body.status_end.rota_version[protocol::kVersionLength - 1] = '\0';
        status.end = row.body.status_end;
        return status;
      case Kind::kRefused:
        return std::nullopt;
      default:
        break;  // of a newer rotad
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

void find_programs(Status& status) {
  for (const protocol::StatusClient& client : status.clients) {
    StatusProgram& program = status.programs.emplace_back();
    if (client.uid == protocol::kHiddenUser) {
      program.command = client.name;
      continue;
    }
    const passwd* const user = getpwuid(client.uid);
    program.user = user != nullptr ? user->pw_name : "uid " + std::to_string(client.uid);
    const std::string folder = "/proc/" + std::to_string(client.pid);
    struct stat owner{};
    if (stat(folder.c_str(), &owner) == 0 && owner.st_uid == client.uid) {
      std::ifstream file(folder + "/cmdline", std::ios::binary);
      program.command.assign(std::istreambuf_iterator<char>(file), {});
      while (program.command.ends_with('\0')) program.command.pop_back();
      for (char& letter : program.command) {
        if (static_cast<unsigned char>(letter) < ' ') letter = ' ';
      }
    }
    if (program.command.empty()) program.command = client.name;
  }
}

}  // namespace rota::tool
