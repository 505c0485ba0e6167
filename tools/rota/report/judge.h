// What is wrong with a job: what is always wrong (memory freed twice, ended handles, tests that died, growth under
// repeats), and violations of the rules of `--fail-on`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/rota/report/baseline.h"
#include "tools/rota/report/model.h"
#include "tools/rota/report/rules.h"
#include "tools/rota/report/suppressions.h"

namespace rota::report {

struct Finding {
  std::string kind;                    // freed-twice, ended-handle, died, growth, hang, or the rule's metric
  std::optional<std::size_t> test;     // index in the model
  std::optional<std::size_t> process;  // likewise; neither: the job as a whole
  std::string text;                    // one line, printable
  std::string details = {};            // several printable lines, or ""
};

struct Judgement {
  std::vector<Finding> findings;
  std::vector<std::string> notes;  // what could not be judged, and why
};

struct Demands {
  std::vector<Rule> rules;
  std::optional<Baseline> baseline;
  Suppressions suppressions;
};

// Tests are compared with the baseline by their names; a job without tests counts as one test, by its own name.
Judgement judge(const Model& model, const Demands& demands);

// Live memory at the end, without what is suppressed.
std::uint64_t live_bytes_of(const ProcessReport& process, const Suppressions& suppressions);

// The baseline that this job would make. Tests that failed are not in it.
Baseline baseline_of(const Model& model, const Suppressions& suppressions);

}  // namespace rota::report
