#include "tools/rota/report/ending.h"

#include <fmt/format.h>

#include <csignal>

namespace rota::report {
namespace {

// glibc has names of signals only from 2.32 on.
std::string signal_name(int number) {
  switch (number) {
#define ROTA_SIGNAL(name) \
  case name:              \
    return #name;
    ROTA_SIGNAL(SIGABRT)
    ROTA_SIGNAL(SIGALRM)
    ROTA_SIGNAL(SIGBUS)
    ROTA_SIGNAL(SIGFPE)
    ROTA_SIGNAL(SIGHUP)
    ROTA_SIGNAL(SIGILL)
    ROTA_SIGNAL(SIGINT)
    ROTA_SIGNAL(SIGKILL)
    ROTA_SIGNAL(SIGPIPE)
    ROTA_SIGNAL(SIGQUIT)
    ROTA_SIGNAL(SIGSEGV)
    ROTA_SIGNAL(SIGTERM)
    ROTA_SIGNAL(SIGTRAP)
    ROTA_SIGNAL(SIGXCPU)
#undef ROTA_SIGNAL
    default:
      return fmt::format("signal {}", number);
  }
}

}  // namespace

std::string end_text(const EndRecord& end) {
  return end.signal != 0 ? "ended by " + signal_name(end.signal) : fmt::format("ended with {}", end.exit_code);
}

std::string ending_text(const ProcessAccount& process, const std::optional<EndRecord>& end) {
  if (end) return end_text(*end);
  if (process.ending == Ending::kExited) return "ended by exit()";
  if (process.ending == Ending::kRunning) return "still running";
  return "ended by a signal or by _exit()";
}

}  // namespace rota::report
