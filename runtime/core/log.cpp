#include "runtime/core/log.h"

#include <sys/uio.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/preload/standard_error.h"
#include "scheduler/base/printable.h"

namespace rota::log {
namespace {

constexpr int kUnread = -1;
std::atomic<int> current_level{kUnread};
std::atomic<const RotaStandardError*> standard_error{nullptr};

// ROTA_LOG=error|warn|info|debug: how much rota says on stderr.
int read_level() noexcept {
  const char* value = std::getenv("ROTA_LOG");  // NOLINT(concurrency-mt-unsafe): read only, like every library does
  if (value == nullptr || *value == '\0') return static_cast<int>(Level::kWarn);
  constexpr const char* kNames[] = {"error", "warn", "info", "debug"};
  for (int index = 0; index < 4; ++index) {
    if (std::strcmp(value, kNames[index]) == 0) return index;
  }
  return static_cast<int>(Level::kWarn) | 0x100;
}

}  // namespace

Level level() noexcept {
  int known = current_level.load(std::memory_order_relaxed);
  if (known != kUnread) return static_cast<Level>(known);
  const int read = read_level();
  known = read & 0xff;
  // Only the thread that stores the level complains, and only after storing it: warn() comes back here.
  if (current_level.exchange(known, std::memory_order_relaxed) == kUnread && (read & 0x100) != 0) {
    const char* value = std::getenv("ROTA_LOG");  // NOLINT(concurrency-mt-unsafe)
    warn("ROTA_LOG is '{}': use error, warn, info or debug; warn is used", value != nullptr ? value : "");
  }
  return static_cast<Level>(known);
}

void set_standard_error(const RotaStandardError* began) noexcept {
  standard_error.store(began, std::memory_order_relaxed);
}

void write_line(const char* text, std::size_t length) noexcept {
  // Names that other users have chosen may be in it.
  char shown[kMaximumLine];
  length = std::min(length, sizeof shown);
  std::memcpy(shown, text, length);
  length = make_printable(shown, length);
  char prefix[] = "rota: ";
  char newline[] = "\n";
  const iovec parts[] = {{prefix, sizeof prefix - 1}, {shown, length}, {newline, 1}};
  thin::write_standard_error(standard_error.load(std::memory_order_relaxed), parts, 3);
}

}  // namespace rota::log
