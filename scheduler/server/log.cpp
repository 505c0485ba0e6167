// spdlog, header-only, with the fmt that is installed.
#include "scheduler/server/log.h"

#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <optional>

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
// rotad. A pipe then accepts PIPE_BUF bytes.
bool can_write() {
  pollfd standard_error{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&standard_error, 1, 0) != 0;
}

constexpr std::size_t kLongest = PIPE_BUF - 64;  // without what the pattern adds
std::mutex writing;                              // the loop, and the thread that serves metrics
std::size_t lost = 0;
bool journal = false;
std::optional<Journal> entries;  // the journal's, if it takes entries with fields

// Whether standard error is the journal, which systemd names by its device and inode; a later redirection does not
// count.
bool writes_to_journal() {
  const char* stream = std::getenv("JOURNAL_STREAM");  // NOLINT(concurrency-mt-unsafe): no other thread yet
  struct stat info;
  return stream != nullptr && fstat(STDERR_FILENO, &info) == 0 &&
         fmt::format("{}:{}", info.st_dev, info.st_ino) == stream;
}

int priority_of(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::debug:
      return 7;
    case spdlog::level::info:
      return 6;
    case spdlog::level::warn:
      return 4;
    default:
      return 3;
  }
}

// The level as the journal reads it at a line's beginning (sd-daemon(3)); nothing elsewhere.
std::string journal_level(spdlog::level::level_enum level) {
  return journal ? fmt::format("<{}>", priority_of(level)) : "";
}

}  // namespace

void start(const std::string& level, bool dated) {
  spdlog::set_default_logger(spdlog::stderr_logger_st("rotad"));  // spdlog's own default writes to stdout
  journal = writes_to_journal();
  if (const std::string socket = journal ? journal_socket_of(STDERR_FILENO) : ""; !socket.empty())
    entries.emplace(socket);
  // The journal has the program's name and the time itself.
  spdlog::set_pattern(journal ? "%v" : dated ? "%Y-%m-%dT%H:%M:%S.%e%z rotad: %l: %v" : "rotad: %l: %v");
  spdlog::set_level(spdlog::level::from_str(level));
}

bool enabled(Level level) {
  return spdlog::should_log(spdlog_level(level));
}

void write(Level level, const std::string& line, const JournalFields& fields) {
  const std::lock_guard lock(writing);
  // It may contain paths and names of other users' choosing.
  const std::string text = printable(line);
  const std::string shown = text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
  if (entries && lost == 0 && entries->send(journal_entry(priority_of(spdlog_level(level)), shown, fields))) return;
  if (!can_write()) {
    ++lost;
    return;
  }
  if (lost != 0) {
    spdlog::warn("{}{} lines are missing here: nobody read standard error", journal_level(spdlog::level::warn), lost);
    lost = 0;
    if (!can_write()) {
      ++lost;
      return;
    }
  }
  spdlog::log(spdlog_level(level), "{}{}", journal_level(spdlog_level(level)), shown);
}

}  // namespace rota::server::log
