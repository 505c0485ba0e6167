// spdlog, header-only, with the fmt that is installed.
#include "scheduler/server/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

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
  spdlog::log(spdlog_level(level), line);
}

}  // namespace rota::server::log
