// The findings in the order in which a person would check, and text functions that all parts share.
#include <fmt/format.h>

#include "tools/rota/doctor/findings.h"

namespace rota::doctor {

const char* level_name(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kNote:
      return "note";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      return "problem";
  }
  return "";
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string size_text(std::uint64_t bytes) {
  return bytes < (std::uint64_t{1} << 30) ? fmt::format("{:.0f} MiB", static_cast<double>(bytes) / (1 << 20))
                                          : fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

std::string counted(std::size_t number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

Findings judge(const Facts& facts) {
  Findings findings;
  judge_driver(facts, findings);
  judge_gpus(facts, findings);
  judge_preload(facts, findings);
  judge_daemon(facts, findings);
  judge_settings(facts, findings);
  judge_host(facts, findings);
  return findings;
}

}  // namespace rota::doctor
