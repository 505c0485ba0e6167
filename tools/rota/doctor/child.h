// Runs this same program again as a child that may crash, hang or print, and reads its report.
//
// A child writes one JSON object per line to a separate descriptor; they are merged, later ones take precedence, so
// that what was reported before a crash counts. "step" is what the child is about to do, "done": true ends the report.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/rota/doctor/facts.h"

namespace rota::doctor {

struct ChildCommand {
  std::vector<std::string> arguments;  // after the program's name; "--report N" is added
  // Variables set on top of the inherited ones; nothing: unset.
  std::vector<std::pair<std::string, std::optional<std::string>>> environment;
  std::chrono::milliseconds limit{30000};
};

struct ChildResult {
  End end = End::kNotRun;
  int detail = 0;  // the signal, or the exit code
  nlohmann::json report = nlohmann::json::object();
  std::string output;  // the end of what it printed, on either stream
};

ChildResult run_child(const ChildCommand& command);

// The child's side.
class Reporter {
 public:
  explicit Reporter(int descriptor) : descriptor_(descriptor) {}
  void say(const nlohmann::json& part) const;
  void step(const std::string& what) const { say({{"step", what}}); }
  void done() const { say({{"done", true}}); }

 private:
  int descriptor_;
};

// Merges the complete lines of a report; lines that are not a JSON object are left out.
nlohmann::json merge_report(const std::string& lines);

// The last non-blank line that a child printed, without control characters, cut at 200 bytes.
std::string last_words(const std::string& output);

// Converts a child's report to facts; values that are missing or of another type count as not reported.
ProbeFacts probe_facts(const ChildResult& result, std::chrono::milliseconds limit);
TrialFacts trial_facts(const ChildResult& result, bool asked_driver);

}  // namespace rota::doctor
