// Emits the driver's tracing wrappers, generated/driver_trace*.cpp, and the parts that they share with the runtime's.
#include <fmt/format.h>

#include "codegen/emit_trace.h"

namespace rota::codegen {
namespace {

// One file would take a minute on one core; this many finish at about the same time.
constexpr std::size_t kParts = 4;

// The value of a parameter as passed to trace::enter: few distinct types, so that the compiler instantiates few
// templates.
Result<std::string> recorded_value(const Api& api, const Parameter& parameter) {
  const auto type = api.resolve(parameter.type);
  if (!type) return type.error();
  switch (type->kind) {
    case TypeKind::kPointer:
    case TypeKind::kCallback:
    case TypeKind::kArray:
      return fmt::format("trace::address({})", parameter.name);
    case TypeKind::kRecord:
    case TypeKind::kFloat:
      return parameter.name;
    default:
      return fmt::format("static_cast<std::uint{}_t>({})", type->size * 8, parameter.name);
  }
}

std::string count_expression(const Api& api, const Function& function, const TraceCapture& capture) {
  if (capture.count.empty()) return "1";
  const Parameter* const parameter = function.find_parameter(capture.count);
  if (parameter == nullptr) return capture.count;
  if (!capture.count_is_pointer) return fmt::format("trace::count_of({})", capture.count);
  const auto pointer = api.resolve(parameter->type);
  const auto count = pointer ? api.resolve(pointer->pointee) : pointer;
  // Spelled out, because the runtime's tracers see every pointer as void*.
  return fmt::format("trace::count_at<std::uint{}_t>(static_cast<const void*>({}))", count ? count->size * 8 : 64,
                     capture.count);
}

std::string capture_expression(const Api& api, const Function& function, const TraceCapture& capture) {
  const std::string name = capture.parameter < 0
                               ? std::string("result_")
                               : function.parameters[static_cast<std::size_t>(capture.parameter)].name;
  if (!capture.behind.field.empty()) {
    return fmt::format("trace::list_behind({}, {}, {}, {}, {})", name, capture.behind.pointer, capture.behind.count,
                       capture.behind.count_bytes, capture.bytes);
  }
  if (capture.text_behind) return fmt::format("trace::string_at({})", name);
  if (capture.text) {
    if (capture.count.empty() || capture.count == "1") return fmt::format("trace::string({})", name);
    return fmt::format("trace::string({}, {})", name, count_expression(api, function, capture));
  }
  const std::string data = capture.parameter < 0 ? "&result_" : name;
  return fmt::format("trace::memory({}, {}, {})", data, count_expression(api, function, capture), capture.bytes);
}

}  // namespace

Result<std::string> tracer_body(const Api& api, const TracePlan& plan, const std::string& number,
                                const std::string& api_name, const std::string& result_type, const std::string& call) {
  const Function& function = *plan.function;
  std::string entry = fmt::format("  trace::enter(trace::{}, {}", api_name, number);
  for (const Parameter& parameter : function.parameters) {
    const auto value = recorded_value(api, parameter);
    if (!value) return Error{fmt::format("{}: {}", function.name, value.error().text)};
    entry += ", " + *value;
  }
  const auto result = api.resolve(function.result);
  if (!result) return result.error();
  const bool has_result = result->kind != TypeKind::kVoid;
  // A function that returns a status has written its outputs only if it succeeded.
  const bool has_status = result->kind == TypeKind::kEnum;
  std::string leaving;
  for (const TraceCapture& capture : plan.captures) {
    const std::string expression = capture_expression(api, function, capture);
    if (!capture.at_return) {
      entry += ", " + expression;
    } else if (has_status && capture.parameter >= 0) {
      leaving += fmt::format(",\n               ok_ ? {} : trace::Capture::absent()", expression);
    } else {
      leaving += ",\n               " + expression;
    }
  }
  // Trailing underscores, because some parameters are called result and flags.
  std::string body = entry + ");\n";
  body += has_result ? fmt::format("  {} const result_ = {};\n", result_type, call) : fmt::format("  {};\n", call);
  body +=
      "  trace::Thread& thread_ = trace::this_thread();\n  const std::uint64_t ticks_ = trace::returned(thread_);\n";
  if (has_status && leaving.find("ok_ ?") != std::string::npos)
    body += "  const bool ok_ = static_cast<int>(result_) == 0;\n";
  body += fmt::format("  trace::leave(thread_, ticks_, trace::{}, {}, {}{});\n", api_name, number,
                      plan.result_in_value && has_result ? "static_cast<std::uint32_t>(result_)" : "0", leaving);
  if (has_result) body += "  return result_;\n";
  return body;
}

Result<std::vector<EmittedFile>> emit_driver_tracers(const Inputs& inputs, const std::vector<TracePlan>& plans) {
  const Api& api = inputs.driver;
  const std::string head = banner(inputs);
  std::string header = head + R"(// Tracing wrappers of the driver API: record, call what next::table holds, record.
#pragma once

#include "generated/driver_functions.h"
#include "generated/driver_symbols.h"

namespace rota::tracers {

// By Symbol; null where no header declares the symbol.
extern void* const table[kSymbolCount];

)";
  std::string table = head +
                      "// See driver_trace.h.\n#include \"generated/driver_trace.h\"\n\nnamespace rota::tracers {\n\n"
                      "void* const table[kSymbolCount] = {\n";
  std::vector<std::string> parts(kParts);
  const std::size_t per_part = (plans.size() + kParts - 1) / kParts;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const TracePlan& plan = plans[i];
    if (plan.function == nullptr) {
      table += fmt::format("    nullptr,  // {}\n", plan.name);
      continue;
    }
    table += fmt::format("    reinterpret_cast<void*>(&{}),\n", plan.name);
    header += fmt::format("api::{0}_fn {0};\n", plan.name);
    std::string declaration;
    std::string arguments;
    for (const Parameter& parameter : plan.function->parameters) {
      if (!declaration.empty()) declaration += ", ", arguments += ", ";
      declaration += parameter.type.declare(parameter.name);
      arguments += parameter.name;
    }
    const std::string call = fmt::format("reinterpret_cast<{}_fn*>(next::table[{}])({})", plan.name, i, arguments);
    const auto body = tracer_body(api, plan, std::to_string(i), "kDriverApi", plan.function->result.spelling(), call);
    if (!body) return body.error();
    parts[i / per_part] +=
        fmt::format("{} {}({}) {{\n{}}}\n\n", plan.function->result.spelling(), plan.name, declaration, *body);
  }
  header += "\n}  // namespace rota::tracers\n";
  table += "};\n\n}  // namespace rota::tracers\n";
  std::vector<EmittedFile> files{{"driver_trace.h", header}, {"driver_trace.cpp", table}};
  for (std::size_t part = 0; part < kParts; ++part) {
    files.push_back({fmt::format("driver_trace_{}.cpp", part + 1),
                     head +
                         "// See driver_trace.h; numbers are rota::Symbol.\n"
                         "#include <cstdint>\n\n"
                         "#include \"generated/driver_trace.h\"\n#include \"runtime/trace/record.h\"\n\n"
                         "namespace rota::next {\nextern void* table[kSymbolCount];\n}\n\n"
                         "namespace rota::tracers {\n\nusing namespace api;\n\n" +
                         parts[part] + "}  // namespace rota::tracers\n"});
  }
  return files;
}

}  // namespace rota::codegen
