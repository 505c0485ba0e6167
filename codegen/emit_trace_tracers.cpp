// Emits the tracing wrappers: generated/driver_trace*.cpp with the driver's own types, generated/runtime_trace*.cpp
// with types that are passed the same way (the runtime's headers change signatures between majors under one name, and
// the shim is built without them).
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "codegen/emit_trace.h"

namespace rota::codegen {
namespace {

// One file would take a minute of one core; so many finish together.
constexpr std::size_t kParts = 4;

// The value of a parameter as trace::enter takes it: few distinct types, so that the compiler instantiates few
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
  return fmt::format("trace::{}({})", capture.count_is_pointer ? "count_at" : "count_of", capture.count);
}

std::string capture_expression(const Api& api, const Function& function, const TraceCapture& capture) {
  const std::string name = capture.parameter < 0
                               ? std::string("result_")
                               : function.parameters[static_cast<std::size_t>(capture.parameter)].name;
  if (capture.text_behind) return fmt::format("trace::string_at({})", name);
  if (capture.text) {
    if (capture.count.empty() || capture.count == "1") return fmt::format("trace::string({})", name);
    return fmt::format("trace::string({}, {})", name, count_expression(api, function, capture));
  }
  const std::string data = capture.parameter < 0 ? "&result_" : name;
  return fmt::format("trace::memory({}, {}, {})", data, count_expression(api, function, capture), capture.bytes);
}

}  // namespace

Result<std::string> tracer_body(const Api& api, const TracePlan& plan, std::size_t index, const std::string& api_name,
                                const std::string& result_type, const std::string& call) {
  const Function& function = *plan.function;
  std::string entry = fmt::format("  trace::enter(trace::{}, {}", api_name, index);
  for (const Parameter& parameter : function.parameters) {
    const auto value = recorded_value(api, parameter);
    if (!value) return Error{fmt::format("{}: {}", function.name, value.error().text)};
    entry += ", " + *value;
  }
  const auto result = api.resolve(function.result);
  if (!result) return result.error();
  const bool has_result = result->kind != TypeKind::kVoid;
  // What a function that returns a status writes is only there if it succeeded.
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
  // The trailing underscores: there are parameters called result and flags.
  std::string body = entry + ");\n";
  body += has_result ? fmt::format("  {} const result_ = {};\n", result_type, call) : fmt::format("  {};\n", call);
  body +=
      "  trace::Thread& thread_ = trace::this_thread();\n  const std::uint64_t ticks_ = trace::returned(thread_);\n";
  if (has_status && leaving.find("ok_ ?") != std::string::npos)
    body += "  const bool ok_ = static_cast<int>(result_) == 0;\n";
  body += fmt::format("  trace::leave(thread_, ticks_, trace::{}, {}, {}{});\n", api_name, index,
                      plan.result_in_value && has_result ? "static_cast<std::uint32_t>(result_)" : "0", leaving);
  if (has_result) body += "  return result_;\n";
  return body;
}

Result<std::vector<EmittedFile>> emit_driver_tracers(const Inputs& inputs, const std::vector<TracePlan>& plans) {
  const Api& api = inputs.model.driver;
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
    const auto body = tracer_body(api, plan, i, "kDriverApi", plan.function->result.spelling(), call);
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

namespace {

// Types that the compiler passes and returns as it does the runtime's own.
class Lowering {
 public:
  explicit Lowering(const Api& api) : api_(api) {}

  Result<std::string> type(const TypeRef& declared) {
    const auto type = api_.resolve(declared);
    if (!type) return type.error();
    switch (type->kind) {
      case TypeKind::kVoid:
        return std::string("void");
      case TypeKind::kBool:
        return std::string("bool");
      case TypeKind::kCharacter:
        return std::string("char");
      case TypeKind::kSigned:
        return fmt::format("std::int{}_t", type->size * 8);
      case TypeKind::kUnsigned:
      case TypeKind::kEnum:
        return fmt::format("std::uint{}_t", type->size * 8);
      case TypeKind::kFloat:
        return std::string(type->size == 4 ? "float" : "double");
      case TypeKind::kPointer:
      case TypeKind::kCallback:
      case TypeKind::kArray:
        return std::string("void*");
      case TypeKind::kRecord:
        return record(*type->record);
    }
    return Error{"unknown type"};
  }

  const std::string& records() const { return text_; }

 private:
  Result<std::string> record(const Record& record) {
    const std::string name = "By" + record.name;
    if (!done_.insert(record.name).second) return name;
    if (!record.complete) return Error{fmt::format("{} is passed by value, but its layout is unknown", record.name)};
    std::string text = fmt::format("struct {} {{\n", name);
    // What does not fit two registers is passed in memory whatever it holds (no homogeneous floats in this API).
    if (record.size > 16) {
      text_ += fmt::format(
          "struct {0} {{\n  alignas({1}) unsigned char bytes[{2}];\n}};\nstatic_assert(sizeof({0}) == {2});\n\n", name,
          record.align, record.size);
      return name;
    }
    if (record.is_union) return Error{fmt::format("{} is a small union passed by value: no rule for it", record.name)};
    for (const Field& field : record.fields) {
      if (!field.nested.empty() || field.bits != 0)
        return Error{fmt::format("{}: a nested field by value", record.name)};
      TypeRef element = field.type;
      std::string extents;
      while (!element.extents.empty()) {
        extents += fmt::format("[{}]", element.extents.front());
        element = element.element();
      }
      const auto type = this->type(element);
      if (!type) return type.error();
      text += fmt::format("  {} {}{};\n", *type, field.name, extents);
    }
    text_ += text + fmt::format("}};\nstatic_assert(sizeof({}) == {});\n\n", name, record.size);
    return name;
  }

  const Api& api_;
  std::set<std::string> done_;
  std::string text_;
};

}  // namespace

Result<std::vector<EmittedFile>> emit_runtime_tracers(const Inputs& inputs, const Api& api,
                                                      const std::vector<TracePlan>& plans) {
  const std::string head = banner(inputs);
  Lowering lowering(api);
  std::string functions;
  std::string table;
  std::string symbols;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const TracePlan& plan = plans[i];
    symbols += fmt::format("ROTA_SYMBOL({})\n", plan.name);
    if (plan.function == nullptr) {
      table += fmt::format("    nullptr,  // {}\n", plan.name);
      continue;
    }
    std::string declaration;
    std::string arguments;
    std::string types;
    for (const Parameter& parameter : plan.function->parameters) {
      const auto type = lowering.type(parameter.type);
      if (!type) return Error{fmt::format("{}: {}", plan.name, type.error().text)};
      if (!declaration.empty()) declaration += ", ", arguments += ", ", types += ", ";
      declaration += *type + " " + parameter.name;
      arguments += parameter.name;
      types += *type;
    }
    const auto result = lowering.type(plan.function->result);
    if (!result) return Error{fmt::format("{}: {}", plan.name, result.error().text)};
    const std::string call =
        fmt::format("reinterpret_cast<{}(*)({})>(rota_cudart_real[{}])({})", *result, types, i, arguments);
    // Lowered pointers have lost their types; the captures name the element's size, and texts are char.
    auto body = tracer_body(api, plan, i, "kRuntimeApi", *result, call);
    if (!body) return body.error();
    functions += fmt::format("{} {}({}) {{\n{}}}\n\n", *result, plan.name, declaration, *body);
    table += fmt::format("    reinterpret_cast<void*>(&{}),\n", plan.name);
  }
  const std::string header = head + fmt::format(R"(// The runtime API's symbols and tracers. See runtime/cudart.
#pragma once

#include <cstddef>

inline constexpr std::size_t kRotaCudartSymbols = {};

extern "C" {{
// By number, the line in runtime_symbols.inc. Filled before the first call gets through.
extern void* rota_cudart_real[kRotaCudartSymbols];
extern const char* const rota_cudart_names[kRotaCudartSymbols];
}}

namespace rota::runtime_tracers {{
// Null where the signature is not known: the call is passed on, and not recorded.
extern void* const table[kRotaCudartSymbols];
}}  // namespace rota::runtime_tracers
)",
                                                plans.size());
  const std::string source =
      head +
      "// See runtime_trace.h; numbers are lines of runtime_symbols.inc.\n"
      "#include \"generated/runtime_trace.h\"\n\n#include <cstdint>\n\n"
      "#include \"runtime/trace/record.h\"\n\nnamespace rota::runtime_tracers {\nnamespace {\n\n" +
      lowering.records() + functions + "}  // namespace\n\nvoid* const table[kRotaCudartSymbols] = {\n" + table +
      "};\n\n}  // namespace rota::runtime_tracers\n\n"
      "#define ROTA_SYMBOL(name) #name,\n"
      "const char* const rota_cudart_names[kRotaCudartSymbols] = {\n"
      "#include \"generated/runtime_symbols.inc\"\n};\n";
  return std::vector<EmittedFile>{
      {"runtime_symbols.inc", head + symbols}, {"runtime_trace.h", header}, {"runtime_trace.cpp", source}};
}

}  // namespace rota::codegen
