#include "codegen/report.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/diff.h"
#include "codegen/suggest.h"

namespace rota::codegen {
namespace {

std::string signature(const Function& function) {
  std::string parameters;
  for (const Parameter& parameter : function.parameters) {
    parameters += (parameters.empty() ? "" : ", ") + parameter.type.declare(parameter.name);
  }
  return fmt::format("{}({})", function.name, parameters);
}

// The facts of a policy entry, named as in policy.toml, without parameters.
std::string facts_text(const FunctionPolicy& policy) {
  std::vector<std::string> facts;
  const auto list = [&](std::string_view name, const std::vector<std::string>& values) {
    if (!values.empty()) facts.push_back(fmt::format("{} = {}", name, fmt::join(values, ", ")));
  };
  if (!policy.submits.empty()) facts.push_back("submits = " + policy.submits);
  list("needs_mapping", policy.needs_mapping);
  if (policy.needs_room) facts.push_back("needs_room");
  if (policy.may_block) facts.push_back("may_block");
  if (!policy.captures.empty()) facts.push_back("captures = " + policy.captures);
  list("allocates", policy.allocates);
  list("frees", policy.frees);
  list("exports", policy.exports);
  if (!policy.context.empty()) facts.push_back("context = " + policy.context);
  if (policy.query) facts.push_back("query");
  return fmt::format("{}", fmt::join(facts, ", "));
}

// The pointer parameters of these versions that the policy does not cover, with the guess from their types.
std::string unreviewed_uses(const Api& api, const std::vector<const Function*>& versions, const FactTable& table,
                            int major) {
  std::set<std::string> seen;
  std::string text;
  for (const Function* function : versions) {
    const FunctionPolicy* policy = find_facts(table, *function, major);
    for (const Parameter& parameter : function->parameters) {
      if (!parameter.type.is_pointer() || (policy && policy->parameters.contains(parameter.name))) continue;
      if (!seen.insert(parameter.name).second) continue;
      text += fmt::format("{}{} = \"{}\"", text.empty() ? "" : ", ", parameter.name,
                          suggest_use(api, *function, parameter));
    }
  }
  return text;
}

void append_functions(std::string& text, std::string_view title, const Api& api, const Api& other) {
  std::vector<const Function*> functions;
  for (const Function& function : api.functions) {
    if (!other.find_function(function.name)) functions.push_back(&function);
  }
  text += fmt::format("### {}: {}\n\n", title, functions.size());
  for (const Function* function : functions) {
    const std::string since =
        function->version != 0 ? fmt::format(" (cuGetProcAddress from {})", release_name(function->version)) : "";
    text += fmt::format("- `{}`{}\n", signature(*function), since);
  }
  if (!functions.empty()) text += '\n';
}

// What the policy says, and does not say, about the functions that a release added.
void append_decisions(std::string& text, const Inputs& inputs, const Model& before, const Model& after) {
  std::string open;
  std::string inherited;
  std::string decided;
  for (const auto& [base, versions] : functions_by_base(after.driver)) {
    std::vector<const Function*> fresh;
    for (const Function* function : versions) {
      if (!before.driver.find_function(function->name)) fresh.push_back(function);
    }
    const std::string uses = unreviewed_uses(after.driver, versions, inputs.policy.functions, 0);
    const FunctionPolicy* const policy = inputs.policy.find(base);
    if (!policy) {
      open +=
          fmt::format("- [ ] `{}` ({}): {}", base, versions.back()->header, suggestion_text(suggest_facts(versions)));
      open += uses.empty() ? "\n" : fmt::format("; params by their types: `{}`\n", uses);
      continue;
    }
    if (!uses.empty()) open += fmt::format("- [ ] `{}`: params not reviewed; by their types: `{}`\n", base, uses);
    if (fresh.empty()) continue;
    const bool whole = fresh.size() == versions.size();
    (whole ? decided : inherited) +=
        fmt::format("- {}`{}`: {}\n", whole ? "" : "[ ] ", whole ? base : fresh.back()->name, facts_text(*policy));
  }
  for (const RuntimeMajor& runtime : inputs.runtimes) {
    if (runtime.major != release_number(after.release) / 1000) continue;
    for (const auto& [base, versions] : functions_by_base(after.runtime)) {
      const std::string uses = unreviewed_uses(after.runtime, versions, inputs.policy.runtime, runtime.major);
      if (!uses.empty()) open += fmt::format("- [ ] `{}` (runtime): params by their types: `{}`\n", base, uses);
    }
  }
  const auto section = [&](std::string_view title, std::string_view note, const std::string& lines) {
    if (lines.empty()) return;
    text += fmt::format("### {}\n\n{}{}{}\n", title, note, note.empty() ? "" : "\n\n", lines);
  };
  section("Decisions for policy.toml",
          "Suggested from signature, documentation marks and name; whoever decides reads the documentation. Until then "
          "these functions pass through ungated.",
          open.empty() ? "None is open.\n" : open);
  section("New versions of known functions", "They inherit the facts of their base name: do these still hold?",
          inherited);
  section("Already decided", "", decided);
}

// The lines of the model's diff that are about types.
void append_types(std::string& text, const Model& before, const Model& after) {
  std::string lines;
  std::size_t count = 0;
  for (const std::string& line : diff_models(before, after)) {
    if (line.find(" function ") == std::string::npos) {
      lines += line + '\n';
      ++count;
    }
  }
  text += fmt::format("### Types, fields and enumerators: {} differences\n\n", count);
  if (count != 0) text += "<details>\n\n```diff\n" + lines + "```\n\n</details>\n\n";
}

void append_changes(std::string& text, const Model& before, const Model& after) {
  std::string lines;
  for (const std::string& line : diff_models(before, after)) {
    if (line.starts_with("~ ") && line.find(" function ") != std::string::npos)
      lines += fmt::format("- `{}`\n", line.substr(2));
  }
  text += fmt::format("### Changed functions\n\n{}\n", lines.empty() ? "None.\n" : lines);
}

}  // namespace

std::string release_report(const Inputs& inputs, const Model& before, const Model& after) {
  std::string text;
  append_decisions(text, inputs, before, after);
  append_functions(text, "Driver functions added", after.driver, before.driver);
  append_functions(text, "Driver functions removed", before.driver, after.driver);
  append_functions(text, "Runtime functions added", after.runtime, before.runtime);
  append_functions(text, "Runtime functions removed", before.runtime, after.runtime);
  append_changes(text, before, after);
  append_types(text, before, after);
  return text;
}

EmittedFile emit_coverage(const Inputs& inputs) {
  std::string text = fmt::format(
      "<!-- Generated by rota-codegen from cuda_headers/api and cuda_headers/policy.toml; do not edit. -->\n"
      "# Coverage\n\n"
      "What this build of rota knows of each CUDA release. A driver of a release between two of these, or of one "
      "before "
      "the first, exports a part of what the next one does. Functions of newer releases pass through untouched and are "
      "counted.\n\n"
      "- **known**: exported symbols that have a thunk, a typed tracer and a place in the cuGetProcAddress table.\n"
      "- **gated**: symbols that submit work, which waits for the lease. Not counted: symbols whose gate does not wait "
      "(captures, calls that only look at device addresses, calls that export something to another process).\n"
      "- **by hand**: symbols with a hand-written override in runtime/overrides.inc (memory, copies, contexts, graphs, "
      "entry points and others).\n"
      "- **reviewed**: symbols all of whose pointer parameters have a reviewed direction and length.\n"
      "- **runtime symbols**: what the release's libcudart exports; **traced** are those that a header declares. The "
      "others are passed on untraced.\n\n"
      "| CUDA | driver symbols | known | gated | by hand | reviewed | libcudart | runtime symbols | traced | reviewed "
      "|\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");
  // Uses the union's parameter names, the only ones that the policy knows.
  const auto reviewed = [](const Api& united, const std::string& name, const FactTable& table, int major) {
    const Function& function = *united.find_function(name);
    const FunctionPolicy* policy = find_facts(table, function, major);
    return std::ranges::all_of(function.parameters, [&](const Parameter& parameter) {
      return !parameter.type.is_pointer() || (policy && policy->parameters.contains(parameter.name));
    });
  };
  for (const Model& model : inputs.releases) {
    const int major = release_number(model.release) / 1000;
    const Api& united = std::ranges::find(inputs.runtimes, major, &RuntimeMajor::major)->api;
    std::size_t known = 0, gated = 0, by_hand = 0, driver_reviewed = 0, traced = 0, runtime_reviewed = 0;
    for (const Function& function : model.driver.functions) {
      const FunctionPolicy* policy = inputs.policy.find(function.base);
      known += std::ranges::binary_search(inputs.symbols, function.name);
      gated += policy && !policy->submits.empty();
      by_hand += std::ranges::find(inputs.overrides, function.name) != inputs.overrides.end();
      driver_reviewed += reviewed(inputs.driver, function.name, inputs.policy.functions, 0);
    }
    for (const Function& function : model.runtime.functions) {
      if (std::ranges::binary_search(model.library.unexported, function.name)) continue;
      ++traced;
      runtime_reviewed += reviewed(united, function.name, inputs.policy.runtime, major);
    }
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", model.release,
                        model.driver.functions.size(), known, gated, by_hand, driver_reviewed, model.library.name,
                        traced + model.library.undeclared.size(), traced, runtime_reviewed);
  }
  return {"COVERAGE.md", text};
}

}  // namespace rota::codegen
