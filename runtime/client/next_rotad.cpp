#include "runtime/client/next_rotad.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/client/detached.h"
#include "runtime/core/log.h"
#include "scheduler/address/rotad_environment.h"
#include "scheduler/address/socket_path.h"
#include "scheduler/address/started_by_run.h"
#include "scheduler/base/above_standard.h"
#include "scheduler/base/printable.h"

namespace rota::client {

namespace {

std::vector<std::string> environment_for_rotad() {
  std::vector<std::string> kept;
  for (char* const* entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const bool finds = text.starts_with("ROTA_SOCKET_FOUND=") || text.starts_with("LD_LIBRARY_PATH=");
    if (finds || protocol::is_for_rotad(text)) kept.emplace_back(text);
  }
  return kept;
}

bool is_socket(const std::string& path) {
  struct stat info{};
  return lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

}  // namespace

std::optional<std::vector<std::string>> command_for_another(std::string_view arguments) {
  std::vector<std::string> all;
  while (!arguments.empty()) {
    const std::size_t end = std::min(arguments.find('\0'), arguments.size());
    all.emplace_back(arguments.substr(0, end));
    arguments.remove_prefix(std::min(end + 1, arguments.size()));
  }
  if (std::ranges::find(all, protocol::kReadyOption) == all.end() || !all.front().starts_with('/')) return std::nullopt;
  std::vector<std::string> command = {all.front().substr(0, all.front().rfind('/')) + "/rota", "start-rotad"};
  for (const char* const option : {"--mode", "--quantum"}) {
    const auto found = std::ranges::find(all, option);
    if (found == all.end() || found + 1 == all.end()) continue;
    command.insert(command.end(), found, found + 2);
  }
  return command;
}

NextRotad::NextRotad() : environment_(environment_for_rotad()) {}

void NextRotad::served_by(const Connection& rotad, turn::Time now) {
  socket_ = rotad.socket();
  command_.clear();
  heard_ = Heard();
  problem_.clear();
  starts_.served(now);
  const protocol::Listener listener = rotad.rotad();
  if (listener.pid <= 0 || listener.uid != geteuid() || socket_ == protocol::machine_socket()) return;
  if (auto command = command_for_another(protocol::command_line_of(listener.pid))) command_ = std::move(*command);
}

void NextRotad::awaited(turn::Time now) {
  hear();
  if (command_.empty() || !starts_.is_due(now) || !is_socket(socket_)) return;
  starts_.started(now);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    problem_ = std::strerror(errno);  // NOLINT(concurrency-mt-unsafe): a constant text for these
    return;
  }
  heard_ = Heard(Descriptor(above_standard(ends[0])));
  const Descriptor output(above_standard(ends[1]));
  log::info("the rotad at {} was killed or has crashed: starting another", socket_);
  const int error = start_detached(command_, environment_, output.get());
  if (error != 0) problem_ = fmt::format("{}: {}", command_.front(), std::strerror(error));  // NOLINT: as above
}

// A command that ends without a word has started a rotad, or found one.
void NextRotad::hear() {
  const std::optional<std::string> line = heard_.first_line();
  if (!line || line->empty()) return;
  problem_ = fmt::format("{}: {}", command_.front(), printable(*line));
  log::warn("no rotad could be started in place of the one at {}: {}", socket_, problem_);
}

std::string NextRotad::remedy() {
  hear();
  if (command_.empty()) {
    return fmt::format("whoever runs the rotad at {} has to start it again", socket_);
  }
  if (!problem_.empty()) return fmt::format("no other rotad could be started ({})", problem_);
  return "`rota run` starts another rotad";
}

}  // namespace rota::client
