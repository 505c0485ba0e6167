#include "codegen/guard.h"

#include <algorithm>

namespace rota::codegen {
namespace {

bool takes_callback(const Api& api, const Function& function) {
  return std::ranges::any_of(function.parameters, [&](const Parameter& parameter) {
    const auto resolved = api.resolve(parameter.type);
    return resolved && resolved->kind == TypeKind::kCallback;
  });
}

}  // namespace

Guard guard_of(const Api& api, const Function& function, const FunctionPolicy* policy) {
  Guard guard;
  if (policy == nullptr) return guard;
  guard.submits = !policy->submits.empty();
  guard.needs_room = policy->needs_room;
  if (policy->captures == "begin") guard.capture = CaptureGuard::kBegin;
  if (policy->captures == "end") guard.capture = CaptureGuard::kEnd;
  // `passes` is mainly about the other facts: it excuses the mark only for a function that does nothing but export.
  guard.marks = !policy->exports.empty() && (policy->passes.empty() || policy->binding_facts().size() > 1);
  const bool wanted = !policy->needs_mapping.empty() || guard.marks || guard.capture == CaptureGuard::kBegin;
  guard.holds_memory = wanted && !guard.submits && !policy->waits_for_others && !takes_callback(api, function);
  guard.marks_before = guard.marks && !guard.holds_memory && !guard.submits;
  return guard;
}

}  // namespace rota::codegen
