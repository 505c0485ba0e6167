#include "tools/rota/report/judging.h"

#include <filesystem>

#include "tools/rota/report/record.h"

namespace rota::report {

Result<Demands> JudgingOptions::demands() const {
  Demands made;
  if (!fail_on.empty()) {
    auto rules = parse_rules(fail_on);
    if (!rules) return Error{"--fail-on: " + rules.error().text};
    made.rules = std::move(*rules);
  }
  for (const Rule& rule : made.rules) {
    if (rule.needs_baseline() && baseline.empty()) {
      return Error{"--fail-on: '" + rule.text + "' compares with a baseline: name one with --baseline"};
    }
  }
  // The first run with `--baseline FILE --update FILE` makes the file.
  std::error_code error;
  if (!baseline.empty() && baseline == update && !std::filesystem::exists(baseline, error)) {
    made.baseline.emplace();
  } else if (!baseline.empty()) {
    auto read = read_baseline(baseline);
    if (!read) return read.error();
    made.baseline = std::move(*read);
  }
  if (!update.empty()) {
    if (const auto checked = check_file(update); !checked) return Error{"--update " + checked.error().text};
    // Its other entries stay.
    if (update != baseline && std::filesystem::exists(update, error)) {
      if (const auto read = read_baseline(update); !read) return read.error();
    }
  }
  if (!suppressions.empty()) {
    if (const auto added = made.suppressions.add_file(suppressions); !added) return added.error();
  }
  return made;
}

Result<bool> JudgingOptions::check_files(std::vector<NamedFile> others) const {
  others.push_back({"--suppress", suppressions, false});
  std::vector<NamedFile> with_baseline = others;
  with_baseline.push_back({"--baseline", baseline, false});
  if (const auto checked = check_distinct(with_baseline); !checked) return checked.error();
  others.push_back({"--update", update});
  return check_distinct(others);
}

Result<bool> JudgingOptions::write_update(const Report& report) const {
  if (update.empty()) return true;
  Baseline kept;
  if (std::error_code error; std::filesystem::exists(update, error)) {
    auto read = read_baseline(update);
    if (!read) return read.error();
    kept = std::move(*read);
  }
  update_baseline(kept, baseline_of(report.model, report.suppressions));
  return write_file(update, baseline_text(kept));
}

}  // namespace rota::report
