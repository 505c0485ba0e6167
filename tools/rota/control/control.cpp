// Sends one line to rotad's control socket and receives one line.
#include "tools/rota/control/control.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/address/socket_path.h"
#include "scheduler/address/unresponsive.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/base/printable.h"
#include "tools/rota/report/format.h"
#include "tools/rota/run/output.h"

namespace rota::tool {
namespace {

int failed(const std::string& text) {
  write_message("rota: " + report::printable(text) + "\n");
  return 1;
}

// Who may use the socket according to its mode, as the end of a sentence. rotad has made it, or systemd for the group
// of its unit.
std::string who_may(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return "root, and the user or group that rotad runs as, can";
  // NOLINTBEGIN(concurrency-mt-unsafe)
  const passwd* const user = getpwuid(info.st_uid);
  std::string text = "root";
  if (info.st_uid != 0) text += fmt::format(" and {}", user == nullptr ? std::to_string(info.st_uid) : user->pw_name);
  if ((info.st_mode & S_IWGRP) != 0) {
    const group* const members = getgrgid(info.st_gid);
    text += fmt::format(" and members of the group {}",
                        members == nullptr ? std::to_string(info.st_gid) : members->gr_name);
  }
  // NOLINTEND(concurrency-mt-unsafe)
  return text + " can";
}

int ask(const std::string& line, std::string path) {
  protocol::SocketCandidate place{{}, protocol::SocketOwner::kChosen};
  if (path.empty()) {
    const protocol::SocketSearch search = protocol::find_rotad();
    if (const Descriptor rotad(search.descriptor); !rotad) {
      return failed(
          protocol::nobody_there(search.error)
              ? fmt::format("no rotad is running (last looked for at {})", search.candidate.path)
              : fmt::format("cannot talk to the rotad at {}: {}", search.candidate.path, strerror(search.error)));
    }
    if (!protocol::control_path(search.candidate.path, place.path)) {
      return failed(fmt::format("the rotad at {} has its control socket elsewhere: name it with --socket",
                                search.candidate.path));
    }
    path = place.path;
  } else if (path.size() >= sizeof place.path) {
    return failed(fmt::format("{} is longer than a path may be (4095 bytes)", path));
  } else {
    path.copy(place.path, sizeof place.path - 1);
  }
  const int connected = protocol::connect_socket(place);
  const Descriptor rotad(connected);
  if (!rotad) {
    return failed(fmt::format("cannot reach rotad's control socket {}: {}{}", path, strerror(-connected),
                              -connected == EACCES ? "; " + who_may(path) : ""));
  }
  const timeval patience{.tv_sec = 5, .tv_usec = 0};
  setsockopt(rotad.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  char answer[512];
  ssize_t length = -1;
  if (send(rotad.get(), line.data(), line.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(line.size()) ||
      errno == EPIPE) {  // rotad refused and closed: its reason can still be read
    length = recv(rotad.get(), answer, sizeof answer, 0);
  }
  if (length <= 0) return failed(protocol::unresponsive_text(path, protocol::listener_of(rotad.get())));
  const std::string text = printable({answer, static_cast<std::size_t>(length)});
  if (text.rfind("ok: ", 0) != 0) return failed(text.rfind("error: ", 0) == 0 ? text.substr(7) : text);
  return print("rota control", text.substr(4) + "\n") ? 0 : 1;
}

}  // namespace

void register_control(CLI::App& app) {
  auto words = std::make_shared<std::vector<std::string>>();
  auto socket = std::make_shared<std::string>();
  CLI::App* control = app.add_subcommand("control",
                                         "change a running rotad: mode MODE, quantum TIME, grace TIME, reload (its "
                                         "rotad.toml), nvml release or use (for a driver to be unloaded) or stop "
                                         "(root, rotad's own user, members of its group)");
  control->add_option("--socket", *socket, "rotad's control socket (default: that of the rotad that serves you)");
  control->add_option("setting", *words, "e.g. mode exclusive, quantum 100ms, grace 5s, nvml release, reload, stop")
      ->required();
  control->callback([words, socket] {
    std::string line;
    for (const std::string& word : *words) line += (line.empty() ? "" : " ") + word;
    throw CLI::RuntimeError(ask(line, *socket));
  });
}

}  // namespace rota::tool
