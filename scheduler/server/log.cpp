// spdlog, header-only, with the fmt that is installed.
#include "scheduler/server/log.h"

#include <limits.h>
#include <poll.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstddef>

#include "scheduler/base/printable.h"

namespace rota::server::log {
namespace {

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      break;
  }
  return spdlog::level::err;
}

// Whether a line can be written without waiting: a pipe that nobody reads, or a terminal that is held, must not stop
// rotad. A pipe then has room for PIPE_BUF bytes.
bool has_room() {
  pollfd standard_error{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&standard_error, 1, 0) != 0;
}

constexpr std::size_t kLongest = PIPE_BUF - 64;  // without what the pattern adds
std::size_t lost = 0;

}  // namespace

void start(const std::string& level) {
  spdlog::set_default_logger(spdlog::stderr_logger_st("rotad"));  // spdlog's own default writes to stdout
  spdlog::set_pattern("rotad: %l: %v");
  spdlog::set_level(spdlog::level::from_str(level));
}

bool enabled(Level level) {
  return spdlog::should_log(spdlog_level(level));
}

void write(Level level, const std::string& line) {
  if (!has_room()) {
    ++lost;
    return;
  }
  if (lost != 0) {
    spdlog::warn("{} lines are missing here: nobody read standard error", lost);
    lost = 0;
    if (!has_room()) {
      ++lost;
      return;
    }
  }
  // Paths, names and what the system says of them are in it.
  const std::string shown = printable(line);
  spdlog::log(spdlog_level(level), shown.size() <= kLongest ? shown : shown.substr(0, kLongest) + "...");
}

}  // namespace rota::server::log
