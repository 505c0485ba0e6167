// driver_gates.h and .cpp: one gate for each symbol that the policy says submits work.
#include <fmt/format.h>

#include "codegen/emit.h"
#include "codegen/emit_driver.h"
#include "codegen/emit_types.h"
#include "codegen/suggest.h"

namespace rota::codegen {
namespace {

// What a gate tells the scope about the stream: an expression, and whether the call has one at all.
struct StreamArgument {
  std::string expression = "nullptr";
  bool has_stream = false;
};

// A parameter that stands for a whole context: the work goes to it, not to a stream that the call names.
bool is_context(const TypeRef& type) {
  return (type.base == "CUcontext" || type.base == "CUgreenCtx") && type.pointers.empty();
}

const Field* find_field(const Record& record, std::string_view name) {
  for (const Field& field : record.fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

Result<StreamArgument> stream_of_field(const Api& api, const Parameter& parameter, const std::string& field_name) {
  const auto resolved = api.resolve(parameter.type);
  if (!resolved) return resolved.error();
  const bool pointer = resolved->kind == TypeKind::kPointer;
  const auto target = pointer ? api.resolve(resolved->pointee) : resolved;
  const Field* field = target && target->record ? find_field(*target->record, field_name) : nullptr;
  if (!field || !is_stream(field->type)) {
    return Error{fmt::format("parameter {} has no field {} of type CUstream", parameter.name, field_name)};
  }
  // A null pointer is the driver's to refuse.
  if (pointer) return StreamArgument{fmt::format("{0} ? {0}->{1} : nullptr", parameter.name, field_name), true};
  return StreamArgument{fmt::format("{}.{}", parameter.name, field_name), true};
}

Result<StreamArgument> stream_argument(const Api& api, const Function& function, const std::string& submits) {
  if (submits == "current") return StreamArgument{};
  const std::size_t dot = submits.find('.');
  if (const Parameter* parameter = function.find_parameter(submits.substr(0, dot))) {
    if (dot != std::string::npos) return stream_of_field(api, *parameter, submits.substr(dot + 1));
    if (is_stream(parameter->type)) return StreamArgument{parameter->name, true};
    if (is_context(parameter->type)) return StreamArgument{};
    if (parameter->type.is_pointer() && is_stream(parameter->type.pointee())) {
      return StreamArgument{fmt::format("{0} ? *{0} : nullptr", parameter->name), true};
    }
    return Error{fmt::format("parameter {} is neither a stream nor a context", parameter->name)};
  }
  // The policy speaks of all versions of a function; this one calls its stream differently, or has none.
  for (const Parameter& parameter : function.parameters) {
    if (is_stream(parameter.type)) return StreamArgument{parameter.name, true};
  }
  return StreamArgument{};
}

}  // namespace

Result<std::vector<EmittedFile>> emit_gates(const Inputs& inputs) {
  const Api& api = inputs.driver;
  std::string header = banner(inputs);
  header += R"(// The gates: for every function that submits work, wait for the lease, then call the real driver.
#pragma once

#include "generated/driver_functions.h"
#include "generated/driver_symbols.h"

namespace rota::gates {

// By symbol; null where the function submits nothing.
extern void* const table[kSymbolCount];

)";
  std::string source = banner(inputs);
  source += R"(#include "generated/driver_gates.h"

#include "generated/driver_real.h"
#include "runtime/turn/scope.h"

namespace rota::gates {

)";
  std::string table;
  for (const std::string& symbol : inputs.symbols) {
    const Function* function = api.find_function(symbol);
    const FunctionPolicy* policy = function ? inputs.policy.find(function->base) : nullptr;
    if (!policy || policy->submits.empty()) {
      table += "    nullptr,\n";
      continue;
    }
    const auto stream = stream_argument(api, *function, policy->submits);
    if (!stream)
      return Error{fmt::format("policy.toml: {}: submits = \"{}\": {}", symbol, policy->submits, stream.error().text)};
    const std::string signature =
        fmt::format("{} {}({})", qualify(function->result), symbol, qualified_parameters(*function));
    header += signature + ";\n";
    source += fmt::format("{} {{\n  gate::Scope scope({{Symbol::k_{}, {}, {}, {}}});\n  return real::{}({});\n}}\n",
                          signature, symbol, stream->expression, stream->has_stream,
                          function->form != StreamForm::kDefault, symbol, argument_names(*function));
    table += fmt::format("    reinterpret_cast<void*>(&{}),\n", symbol);
  }
  header += "\n}  // namespace rota::gates\n";
  source += "\nvoid* const table[kSymbolCount] = {\n" + table + "};\n\n}  // namespace rota::gates\n";
  return std::vector<EmittedFile>{{"driver_gates.h", header}, {"driver_gates.cpp", source}};
}

}  // namespace rota::codegen
