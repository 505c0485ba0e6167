// One line on stderr, from inside someone else's program.
//
// Each message is formatted into a buffer on the stack and leaves in one write(2): no lock, no allocation, nothing
// thrown, so that a thread may log while it holds any of rota's locks, and lines of several threads do not mix.
// ROTA_LOG chooses what is written: error, warn (the default), info or debug.
#pragma once

#include <fmt/format.h>
#include <atomic>
#include <cstddef>
#include <utility>

struct RotaStandardError;

namespace rota::log {

enum class Level : int { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

// Longer messages are cut: one page of text is no log line.
inline constexpr std::size_t kMaximumLine = 1024;

// ROTA_LOG, read at the first message of the process.
Level level() noexcept;
inline bool enabled(Level wanted) noexcept {
  return wanted <= level();
}

// What standard error was when the process began: messages go to that, or to what is plausibly the program's new one
// (runtime/preload/standard_error.h). Before it is known, to whatever has number 2.
void set_standard_error(const RotaStandardError* began) noexcept;

// Writes "rota: <text>\n" whatever the level. `text` need not be terminated. errno is left as it was.
void write_line(const char* text, std::size_t length) noexcept;

template <typename... Arguments>
void message(Level wanted, fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  if (!enabled(wanted)) return;
  char buffer[kMaximumLine];
  try {
    const auto end = fmt::format_to_n(buffer, sizeof buffer, format, std::forward<Arguments>(arguments)...);
    write_line(buffer, end.size < sizeof buffer ? end.size : sizeof buffer);
  } catch (...) {
    // A message that cannot be formatted must not end the program.
  }
}

template <typename... Arguments>
void error(fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  message(Level::kError, format, std::forward<Arguments>(arguments)...);
}
template <typename... Arguments>
void warn(fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  message(Level::kWarn, format, std::forward<Arguments>(arguments)...);
}
template <typename... Arguments>
void info(fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  message(Level::kInfo, format, std::forward<Arguments>(arguments)...);
}
template <typename... Arguments>
void debug(fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  message(Level::kDebug, format, std::forward<Arguments>(arguments)...);
}

// True for the first caller only: `static log::Once once; if (once.first()) log::warn(…);`
class Once {
 public:
  bool first() noexcept { return !done_.exchange(true, std::memory_order_relaxed); }

 private:
  std::atomic<bool> done_{false};
};

}  // namespace rota::log
