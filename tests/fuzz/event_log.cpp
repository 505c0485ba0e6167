// An event log, as `rotad --replay` plays it to the scheduler's core.
#include <algorithm>
#include <sstream>
#include <string>

#include "scheduler/log/event_log.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::istringstream log(text);
  const rota::scheduler::Replay result = rota::scheduler::replay(log);
  const auto lines = static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
  CHECK(result.events + result.decisions <= lines);
  CHECK(result.broken_off <= lines + 1);
  if (result.problem.empty()) return 0;
  CHECK(rota::fuzz::is_a_line(result.problem) && result.problem.rfind("line ", 0) == 0);
  CHECK(std::all_of(result.problem.begin(), result.problem.end(), [](char c) { return c >= ' ' && c <= '~'; }));
  return 0;
}
