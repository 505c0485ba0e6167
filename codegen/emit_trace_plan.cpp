// See emit_trace.h. What is recorded of a parameter:
//   its own value, always; and, unless the policy calls it opaque, what it points to:
//   - text (const char*), at entry
//   - records and reviewed arrays that the call reads, at entry, and arrays that such a record points to and counts
//   - what the call writes, at return, if it succeeded
// Nothing behind void* is read: it may be device memory, or megabytes.
#include "codegen/emit_trace.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

namespace rota::codegen {
namespace {

bool is_character(const Resolved& type) {
  return type.kind == TypeKind::kCharacter;
}

// "numDependencies", "count", "nParams": a pointer next to such a parameter is likely to be an array.
bool names_a_count(const std::string& name) {
  return name.starts_with("num") || name.starts_with("count") || name.ends_with("Count") || name.ends_with("Len");
}

bool has_count(const Api& api, const Function& function) {
  return std::any_of(function.parameters.begin(), function.parameters.end(), [&](const Parameter& parameter) {
    return !parameter.type.is_pointer() && names_a_count(parameter.name) && !api.is_handle(parameter.type);
  });
}

class Planner {
 public:
  Planner(const Api& api, const FactTable& facts, int major) : api_(api), facts_(facts), major_(major) {}

  Result<TracePlan> plan(const std::string& symbol) const {
    TracePlan plan;
    plan.name = symbol;
    plan.function = api_.find_function(symbol);
    if (plan.function == nullptr) return plan;
    const Function& function = *plan.function;
    const FunctionPolicy* const facts = find_facts(facts_, function, major_);
    std::vector<TraceCapture> entry;
    std::vector<TraceCapture> leaving;
    // A function that returns no status may have freed what its pointers lead to (__cudaUnregisterFatBinary).
    const auto result = api_.resolve(function.result);
    if (!result) return Error{fmt::format("{}: result: {}", symbol, result.error().text)};
    const bool has_status = result->kind == TypeKind::kEnum;
    for (std::size_t i = 0; i < function.parameters.size(); ++i) {
      const Parameter& parameter = function.parameters[i];
      const auto type = api_.resolve(parameter.type);
      if (!type) return Error{fmt::format("{}: {}", symbol, type.error().text)};
      if (type->kind != TypeKind::kPointer) continue;
      const ParameterUse use = parameter_use(api_, facts, function, parameter);
      if (use.opaque) continue;
      auto capture = capture_of(function, parameter, *type, use);
      if (!capture) return Error{fmt::format("{}: {}: {}", symbol, parameter.name, capture.error().text)};
      if (capture->bytes == 0) continue;
      capture->parameter = static_cast<int>(i);
      const bool read = use.direction != Direction::kOut && !(capture->count_is_pointer && !use.reviewed);
      if (read && !capture->text_behind) {
        entry.push_back(*capture);
        const auto lists = lists_behind(api_, *capture);
        if (!lists) return Error{fmt::format("{}: {}: {}", symbol, parameter.name, lists.error().text)};
        entry.insert(entry.end(), lists->begin(), lists->end());
      }
      if (use.direction != Direction::kIn && has_status) {
        capture->at_return = true;
        leaving.push_back(*capture);
      }
    }
    if (auto error = plan_result(plan, leaving)) return *error;
    plan.captures = std::move(entry);
    plan.captures.insert(plan.captures.end(), leaving.begin(), leaving.end());
    return plan;
  }

 private:
  // bytes == 0: nothing to capture.
  Result<TraceCapture> capture_of(const Function& function, const Parameter& parameter, const Resolved& pointer,
                                  const ParameterUse& use) const {
    TraceCapture capture;
    capture.type = pointer.pointee;
    const auto element = api_.resolve(pointer.pointee);
    if (!element) return element.error();
    const bool out = use.direction != Direction::kIn;
    if (is_character(*element)) {
      // A char* that is written needs a length, or the policy must say that the text ends in a zero.
      if (use.direction == Direction::kIn || use.string || !use.count.empty()) {
        capture.text = true;
        capture.bytes = 1;
        capture.count = use.count;
        capture.count_is_pointer = use.count_is_pointer;
      }
      return capture;
    }
    if (element->kind == TypeKind::kPointer && out && use.count.empty()) {
      const auto behind = api_.resolve(element->pointee);
      if (!behind) return behind.error();
      if (is_character(*behind) && element->pointee.base_const) {
        capture.text = capture.text_behind = true;
        capture.bytes = 1;
        return capture;
      }
    }
    if (element->kind == TypeKind::kVoid || element->size == 0) return capture;
    if (!use.count.empty()) {
      capture.list = true;
      capture.count = use.count;
      capture.count_is_pointer = use.count_is_pointer;
    } else if (!out && !use.reviewed && (element->kind != TypeKind::kRecord || has_count(api_, function))) {
      return capture;  // perhaps an array of unknown length, or an empty one
    }
    // A program compiled with an older release may have provided a shorter struct. The stride of such elements in an
    // array is not known.
    if (parameter.smallest != 0 && capture.list) return TraceCapture();
    capture.bytes = parameter.smallest != 0 ? parameter.smallest : element->size;
    return capture;
  }

  std::optional<Error> plan_result(TracePlan& plan, std::vector<TraceCapture>& leaving) const {
    const auto result = api_.resolve(plan.function->result);
    if (!result) return Error{fmt::format("{}: result: {}", plan.name, result.error().text)};
    switch (result->kind) {
      case TypeKind::kVoid:
        plan.result_in_value = true;
        return std::nullopt;
      case TypeKind::kPointer: {
        plan.result_in_value = false;
        TraceCapture capture;
        capture.at_return = true;
        const auto pointee = api_.resolve(result->pointee);
        if (!pointee) return Error{fmt::format("{}: result: {}", plan.name, pointee.error().text)};
        capture.text = is_character(*pointee);
        capture.type = capture.text ? result->pointee : plan.function->result;
        capture.bytes = capture.text ? 1 : result->size;
        leaving.insert(leaving.begin(), capture);
        return std::nullopt;
      }
      default:
        break;
    }
    if (result->size <= 4 && result->kind != TypeKind::kRecord && result->kind != TypeKind::kFloat) return std::nullopt;
    plan.result_in_value = false;
    TraceCapture capture;
    capture.at_return = true;
    capture.type = plan.function->result;
    capture.bytes = result->size;
    leaving.insert(leaving.begin(), capture);
    return std::nullopt;
  }

  const Api& api_;
  const FactTable& facts_;
  int major_;
};

}  // namespace

Result<std::vector<TracePlan>> plan_traces(const Api& api, const FactTable& facts, int major,
                                           const std::vector<std::string>& symbols) {
  const Planner planner(api, facts, major);
  std::vector<TracePlan> plans;
  plans.reserve(symbols.size());
  for (const std::string& symbol : symbols) {
    auto plan = planner.plan(symbol);
    if (!plan) return plan.error();
    plans.push_back(std::move(*plan));
  }
  return plans;
}

}  // namespace rota::codegen
