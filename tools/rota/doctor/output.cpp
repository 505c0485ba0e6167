#include "tools/rota/doctor/output.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/rota/report/format.h"

namespace rota::doctor {
namespace {

constexpr std::size_t kLevelWidth = 8;  // "problem" and a space

std::size_t count(const Findings& findings, Level level) {
  return static_cast<std::size_t>(
      std::count_if(findings.begin(), findings.end(), [&](const Finding& finding) { return finding.level == level; }));
}

void add_names(const Finding& finding, const char* key, const char* title, std::size_t indent, std::string& text) {
  const auto names = finding.values.find(key);
  if (names == finding.values.end() || !names->is_array()) return;
  for (const nlohmann::json& name : *names) {
    text += fmt::format("{:{}}{}: {}\n", "", indent, title, name.get<std::string>());
  }
}

}  // namespace

bool all_well(const Findings& findings) {
  return count(findings, Level::kProblem) == 0;
}

std::string as_text(const Findings& findings, bool verbose) {
  std::size_t id_width = 0;
  for (const Finding& finding : findings) id_width = std::max(id_width, finding.id.size());
  const std::size_t indent = kLevelWidth + id_width + 2;
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{:<{}}{:<{}}  {}\n", level_name(finding.level), kLevelWidth, finding.id, id_width,
                        report::printable(finding.text));
    if (!finding.remedy.empty()) text += fmt::format("{:{}}-> {}\n", "", indent, report::printable(finding.remedy));
    if (verbose) {
      add_names(finding, "unknown", "unknown to rota", indent, text);
      add_names(finding, "missing", "not in the driver", indent, text);
    }
  }
  const std::size_t problems = count(findings, Level::kProblem);
  text += fmt::format("\n{}: {}, {}, {}\n", problems == 0 ? "rota works here" : "rota does not work here",
                      counted(problems, "problem"), counted(count(findings, Level::kWarning), "warning"),
                      counted(count(findings, Level::kNote), "note"));
  return text;
}

std::string as_json(const Findings& findings, const std::string& version) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"id", finding.id},
                    {"level", level_name(finding.level)},
                    {"text", finding.text},
                    {"remedy", finding.remedy},
                    {"values", finding.values}});
  }
  nlohmann::json counts = nlohmann::json::object();
  for (const Level level : {Level::kOk, Level::kNote, Level::kWarning, Level::kProblem}) {
    counts[level_name(level)] = count(findings, level);
  }
  const nlohmann::json whole = {
      {"version", version}, {"ok", all_well(findings)}, {"counts", counts}, {"findings", list}};
  // Names, paths and what a driver printed may be any bytes.
  return whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace rota::doctor
