// The daemon's log, on stderr. Only log.cpp includes spdlog: together with asio in one file a sanitizer build takes
// minutes and a gigabyte.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "scheduler/server/journal.h"

namespace rota::server::log {

enum class Level { kDebug, kInfo, kWarn, kError };

// "error", "warn", "info" or "debug"; lines below it are dropped. `dated`: each line begins with the time, unless it
// goes to the journal, which adds that.
void start(const std::string& level, bool dated = true);
bool enabled(Level level);
// `fields`: what the journal stores separately (server/README.md names them); they are written nowhere else.
void write(Level level, const std::string& line, const JournalFields& fields = {});

template <typename... Arguments>
void debug(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (enabled(Level::kDebug)) write(Level::kDebug, fmt::format(format, std::forward<Arguments>(arguments)...));
}
template <typename... Arguments>
void info(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (enabled(Level::kInfo)) write(Level::kInfo, fmt::format(format, std::forward<Arguments>(arguments)...));
}
template <typename... Arguments>
void warn(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (enabled(Level::kWarn)) write(Level::kWarn, fmt::format(format, std::forward<Arguments>(arguments)...));
}

template <typename... Arguments>
void with(Level level, const JournalFields& fields, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (enabled(level)) write(level, fmt::format(format, std::forward<Arguments>(arguments)...), fields);
}

}  // namespace rota::server::log
