// Checks that the policy is enforced: for every call that rota must know about there is code that acts on it, or a
// written reason.
#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/addresses.h"
#include "codegen/check.h"
#include "codegen/guard.h"
#include "codegen/suggest.h"

namespace rota::codegen {
namespace {

// The facts that generated code does not handle: it marks a process that exports memory, and tracks captures that
// begin or end.
std::vector<std::string> left_to_do(const FunctionPolicy& policy, const Guard& guard) {
  std::vector<std::string> facts = policy.binding_facts();
  std::erase_if(facts, [&](const std::string& fact) {
    return fact == "exports" ? guard.marks : guard.capture != CaptureGuard::kNone && fact.starts_with("captures");
  });
  return facts;
}

// For functions that allocate or free, the matrix of allocations says whether an override serves the memory from
// elsewhere or only counts it.
std::string wrong_in_matrix(const FunctionPolicy& policy, bool by_hand) {
  const bool memory = !policy.allocates.empty() || !policy.frees.empty();
  const bool redirected = !policy.redirected.empty();
  const bool counted = !policy.counted.empty();
  const char* const fact = redirected ? "redirected" : "counted";
  if (redirected && counted) return "is both redirected and counted: remove one of them";
  if (!redirected && !counted) {
    if (!memory || !by_hand || !policy.passes.empty()) return "";
    return "allocates or frees memory, and its override handles that: say how in redirected = \"…\" "
           "(rota's own memory may serve it) or counted = \"…\" (the driver's)";
  }
  if (!memory) return fmt::format("is {}, but neither allocates nor frees: remove it", fact);
  if (!by_hand) return fmt::format("is {}, but has no override that does it: remove it", fact);
  return "";
}

void check_functions(const Inputs& inputs, const std::set<std::string>& overridden, Problems& problems) {
  for (const auto& [base, versions] : functions_by_base(inputs.driver)) {
    const FunctionPolicy* policy = inputs.policy.find(base);
    if (policy == nullptr) continue;
    const bool by_hand =
        std::ranges::any_of(versions, [&](const Function* function) { return overridden.contains(function->name); });
    const std::vector<std::string> facts = left_to_do(*policy, guard_of(inputs.driver, *versions.front(), policy));
    const auto problem = [&, name = base](const std::string& text) {
      problems.push_back(fmt::format("cuda_headers/policy.toml:{}: {}: {}", policy->line, name, text));
    };
    if (!facts.empty() && !by_hand && policy->passes.empty()) {
      problem(
          fmt::format("{}, and nothing acts on it: write an override and name it in runtime/overrides.inc, or say "
                      "in passes = \"…\" why it may pass",
                      fmt::join(facts, ", ")));
    }
    if (!policy->passes.empty() && by_hand) problem("has an override, so it does not pass: remove passes");
    if (!policy->passes.empty() && facts.empty()) problem("passes excuses nothing: remove it");
    if (const std::string wrong = wrong_in_matrix(*policy, by_hand); !wrong.empty()) problem(wrong);
    if (policy->waits_for_others && !policy->submits.empty())
      problem("submits, yet may wait for others: no call may wait for another process inside the gate");
  }
}

// An override of a function that submits work must call the generated gate: the file that overrides.inc names for it
// must contain the text "gates::<symbol>(".
void check_gates_of_overrides(const Inputs& inputs, Problems& problems) {
  for (const std::string& name : inputs.overrides) {
    const Function* function = inputs.driver.find_function(name);
    const FunctionPolicy* policy = function ? inputs.policy.find(function->base) : nullptr;
    if (policy == nullptr || policy->submits.empty()) continue;
    const auto file = inputs.override_files.find(name);
    if (file == inputs.override_files.end()) {
      problems.push_back(fmt::format("runtime/overrides.inc: no comment above {} names the file that it is in", name));
      continue;
    }
    const auto source = inputs.override_sources.find(file->second);
    if (source == inputs.override_sources.end() ||
        source->second.find(fmt::format("gates::{}(", name)) == std::string::npos) {
      problems.push_back(fmt::format(
          "{}: the override of {}, which submits work, does not call gates::{}: it would bypass the gate or "
          "build its own",
          file->second, name, name));
    }
  }
}

// For every parameter that leads to a device address, the policy must say that the call submits, needs the memory in
// place or exports it, or why none of that is needed.
void check_addresses(const Inputs& inputs, Problems& problems) {
  const auto names = [](const std::vector<std::string>& list, const std::string& name) {
    return std::ranges::find(list, name) != list.end();
  };
  for (const auto& [base, versions] : functions_by_base(inputs.driver)) {
    const FunctionPolicy* policy = inputs.policy.find(base);
    if (policy == nullptr) continue;
    const auto problem = [&, name = base](const std::string& text) {
      problems.push_back(fmt::format("cuda_headers/policy.toml:{}: {}: {}", policy->line, name, text));
    };
    std::string left;
    for (const Function* function : versions) {
      const auto places = addresses_taken(inputs.driver, *function, policy);
      if (!places) {
        problem(places.error().text);
        break;
      }
      for (const AddressPlace& place : *places) {
        const std::string& name = function->parameters[place.parameter].name;
        const bool said =
            !policy->submits.empty() || names(policy->needs_mapping, name) || names(policy->exports, name);
        if (!said && left.empty()) left = fmt::format("takes a device address, {} of {}", place.text, function->name);
      }
    }
    if (!left.empty() && policy->untouched.empty()) {
      problem(fmt::format(
          "{}, and may be called while that memory is evicted: state submits, needs_mapping or exports, or say in "
          "untouched = \"…\" why that does no harm",
          left));
    }
    if (left.empty() && !policy->untouched.empty()) problem("untouched excuses nothing: remove it");
  }
}

// A function with a parameter that leads to a handle of physical memory needs an override, since the handle may be
// rota's own, which only an override translates. The handle of a multicast object (mcHandle) is always the driver's.
void check_physical_handles(const Inputs& inputs, const std::set<std::string>& overridden, Problems& problems) {
  for (const Function& function : inputs.driver.functions) {
    if (overridden.contains(function.name)) continue;
    const FunctionPolicy* policy = inputs.policy.find(function.base);
    if (policy == nullptr) continue;
    const auto places = physical_handles_taken(inputs.driver, function, policy);
    if (!places) continue;  // check_addresses() says why
    for (const AddressPlace& place : *places) {
      if (function.parameters[place.parameter].name == "mcHandle") continue;
      problems.push_back(fmt::format(
          "cuda_headers/policy.toml:{}: {}: {} of {} is a handle of physical memory and may be one of rota's own: it "
          "needs an override that translates it",
          policy->line, function.base, place.text, function.name));
    }
  }
}

}  // namespace

Problems check_binding(const Inputs& inputs) {
  const std::set<std::string> overridden(inputs.overrides.begin(), inputs.overrides.end());
  Problems problems;
  check_functions(inputs, overridden, problems);
  check_gates_of_overrides(inputs, problems);
  check_addresses(inputs, problems);
  check_physical_handles(inputs, overridden, problems);
  return problems;
}

}  // namespace rota::codegen
