// driver_gates.h and .cpp: one gate for each symbol that, according to the policy, submits work, needs memory to stay
// in place, needs memory of its own, begins or ends a capture, or exports something to code that passes no gate
// (guard.h).
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "codegen/addresses.h"
#include "codegen/emit.h"
#include "codegen/emit_driver.h"
#include "codegen/emit_types.h"
#include "codegen/guard.h"
#include "codegen/suggest.h"

namespace rota::codegen {
namespace {

// What a gate tells the scope about the stream: an expression, and whether the call has a stream at all.
struct StreamArgument {
  std::string expression = "nullptr";
  bool has_stream = false;
};

// A parameter that means a whole context: the work goes to the context, not to a stream named by the call.
bool is_context(const TypeRef& type) {
  return (type.base == "CUcontext" || type.base == "CUgreenCtx") && type.pointers.empty();
}

Result<StreamArgument> stream_of_field(const Api& api, const Parameter& parameter, const std::string& field_name) {
  const auto resolved = api.resolve(parameter.type);
  if (!resolved) return resolved.error();
  const bool pointer = resolved->kind == TypeKind::kPointer;
  const auto target = pointer ? api.resolve(resolved->pointee) : resolved;
  const Field* field = target && target->record ? target->record->find_field(field_name) : nullptr;
  if (!field || !is_stream(field->type)) {
    return Error{fmt::format("parameter {} has no field {} of type CUstream", parameter.name, field_name)};
  }
  // The driver refuses a null pointer.
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
  // The policy covers all versions of a function; this one names its stream differently, or has none.
  for (const Parameter& parameter : function.parameters) {
    if (is_stream(parameter.type)) return StreamArgument{parameter.name, true};
  }
  return StreamArgument{};
}

// The call to the real function as an expression, with its mark.
std::string real_call(const Function& function, const Guard& guard) {
  const std::string call = fmt::format("real::{}({})", function.name, argument_names(function));
  return guard.marks && !guard.marks_before ? fmt::format("contract::exported(Symbol::k_{}, {})", function.name, call)
                                            : call;
}

// After a scope: what the call returns if the process's memory is lost.
std::string refusal(const std::string& indent) {
  return indent + "if (scope.refused()) [[unlikely]] return gate::refusal.load();\n";
}

// A capture begins and ends under the lock that keeps the monitor away; memory is held only within it, since the holder
// of that lock may be waiting for the gate to be empty.
Result<std::string> capture_body(const Function& function, const Guard& guard) {
  const auto stream =
      std::ranges::find_if(function.parameters, [](const Parameter& parameter) { return is_stream(parameter.type); });
  if (stream == function.parameters.end()) return Error{"a capture, but it has no stream parameter"};
  return fmt::format(
      "  return contract::{}_capture({}, {}, [&] {{\n{}    return {};\n  }});\n",
      guard.capture == CaptureGuard::kBegin ? "begin" : "end", stream->name, function.form != StreamForm::kDefault,
      guard.holds_memory ? "    const gate::MappingScope scope;\n" + refusal("    ") : "", real_call(function, guard));
}

// What a graph does is in its nodes, which may lie on any GPU; of an executable one rota remembers on which.
bool is_graph(const TypeRef& type) {
  return type.base == "CUgraph" && type.pointers.empty();
}

bool is_executable_graph(const TypeRef& type) {
  return type.base == "CUgraphExec" && type.pointers.empty();
}

// Whether a parameter leads to several elements.
bool is_list(const FunctionPolicy& policy, const std::string& parameter) {
  const auto use = policy.parameters.find(parameter);
  return use != policy.parameters.end() && !use->second.count.empty();
}

// A parameter's value, as the scopes take it.
std::string as_pointer(const Function& function, std::size_t parameter) {
  const Parameter& named = function.parameters[parameter];
  const bool pointer = named.type.is_pointer();
  return fmt::format("{}<const void*>({})", pointer ? "static_cast" : "reinterpret_cast", named.name);
}

// The parameters that are addresses, at most two; nothing: it names more, or others.
std::optional<std::vector<std::size_t>> plain_addresses(const Function& function,
                                                        const std::vector<AddressPlace>& places) {
  std::vector<std::size_t> parameters;
  for (const AddressPlace& place : places) {
    const TypeRef& type = function.parameters[place.parameter].type;
    const bool is_address = type.is_pointer() || type.base == "CUdeviceptr";
    if (!is_address || place.offsets != std::vector<std::uint64_t>{0}) return std::nullopt;
    parameters.push_back(place.parameter);
  }
  return parameters.size() <= 2 ? std::optional(parameters) : std::nullopt;
}

// In every record that describes a copy, the memory type and the array have the same offsets from the address: so the
// address's place is enough (driver::Reaches::kCopy). Nothing: this is no such record. Nor is a list of several
// records, of which only the first would be read.
std::optional<std::string> reached_by_copy(const Api& api, const Function& function, const FunctionPolicy& policy,
                                           const std::vector<AddressPlace>& addresses,
                                           const std::vector<AddressPlace>& arrays) {
  constexpr std::uint64_t kTypeBefore = 16;
  constexpr std::uint64_t kArrayBehind = 8;
  if (addresses.size() != 2 || arrays.size() != 2) return std::nullopt;
  const std::size_t parameter = addresses.front().parameter;
  const std::string& record = function.parameters[parameter].name;
  if (!policy.parameters.contains(record) || is_list(policy, record)) return std::nullopt;
  const auto resolved = api.resolve(function.parameters[parameter].type);
  const auto target = resolved && resolved->kind == TypeKind::kPointer ? api.resolve(resolved->pointee) : resolved;
  if (!target || target->record == nullptr) return std::nullopt;
  for (std::size_t side = 0; side < 2; ++side) {
    const AddressPlace& address = addresses[side];
    const AddressPlace& array = arrays[side];
    const bool inside = address.parameter == parameter && array.parameter == parameter && address.offsets.size() == 2 &&
                        array.offsets.size() == 2 && address.offsets[0] == 0 && array.offsets[0] == 0;
    if (!inside || array.offsets[1] != address.offsets[1] + kArrayBehind) return std::nullopt;
    const auto is_type = [&](const Field& field) {
      return field.type.base == "CUmemorytype" && field.offset + kTypeBefore == address.offsets[1];
    };
    if (std::ranges::none_of(target->record->fields, is_type)) return std::nullopt;
  }
  return fmt::format(", driver::Reaches::kCopy, {}, driver::in_record({}, {})", as_pointer(function, parameter),
                     addresses[0].offsets[1], addresses[1].offsets[1]);
}

// By parameters only: at most two addresses and arrays.
std::optional<std::string> reached_by_parameters(const Function& function, const std::vector<AddressPlace>& addresses,
                                                 const std::vector<AddressPlace>& arrays) {
  const auto plain = plain_addresses(function, addresses);
  const auto is_parameter = [](const AddressPlace& place) { return place.offsets == std::vector<std::uint64_t>{0}; };
  if (!plain || plain->size() + arrays.size() > 2 || !std::ranges::all_of(arrays, is_parameter)) return std::nullopt;
  const std::string_view which = arrays.empty() ? "kAddresses" : plain->empty() ? "kArrays" : "kAddressAndArray";
  std::string text = fmt::format(", driver::Reaches::{}", which);
  for (const std::size_t parameter : *plain) text += ", " + as_pointer(function, parameter);
  for (const AddressPlace& array : arrays) text += fmt::format(", {}", function.parameters[array.parameter].name);
  return text;
}

// Which GPUs a call reaches in addition to its stream's: further arguments of its scope.
std::string reached(const Api& api, const Function& function, const FunctionPolicy& policy,
                    std::vector<AddressPlace> addresses, std::vector<AddressPlace> arrays) {
  const std::string all = ", driver::Reaches::kAll";
  if (std::ranges::any_of(function.parameters, [](const Parameter& each) { return is_graph(each.type); })) return all;
  for (std::size_t index = 0; index < function.parameters.size(); ++index) {
    if (!is_executable_graph(function.parameters[index].type)) continue;
    return ", driver::Reaches::kGraph, " + as_pointer(function, index);
  }
  if (is_list(policy, policy.submits.substr(0, policy.submits.find('.')))) return all;
  const bool of_context =
      std::ranges::any_of(function.parameters, [](const Parameter& each) { return is_context(each.type); });
  if (of_context && addresses.empty() && arrays.empty()) return all;
  // A kernel's arguments and attributes.
  if (function.base.starts_with("cuLaunch")) addresses.clear();
  if (addresses.empty() && arrays.empty()) return "";
  if (const auto text = reached_by_parameters(function, addresses, arrays)) return *text;
  if (const auto text = reached_by_copy(api, function, policy, addresses, arrays)) return *text;
  return all;
}

Result<std::string> gate_body(const Api& api, const Function& function, const FunctionPolicy& policy,
                              const Guard& guard) {
  std::string body;
  if (guard.marks_before)
    body += fmt::format("  contract::exported(Symbol::k_{}, api::CUDA_SUCCESS);\n", function.name);
  if (guard.capture != CaptureGuard::kNone) {
    const auto rest = capture_body(function, guard);
    if (!rest) return rest.error();
    return body + *rest;
  }
  if (guard.submits) {
    const auto stream = stream_argument(api, function, policy.submits);
    if (!stream) return Error{fmt::format("submits = \"{}\": {}", policy.submits, stream.error().text)};
    const auto places = addresses_taken(api, function, &policy);
    if (!places) return places.error();
    const auto arrays = arrays_taken(api, function, &policy);
    if (!arrays) return arrays.error();
    return body + fmt::format(
                      "  return contract::with_room([=]() __attribute__((always_inline)) {{\n"
                      "    gate::Scope scope({{Symbol::k_{}, {}, {}, {}{}}});\n"
                      "{}    return {};\n"
                      "  }});\n",
                      function.name, stream->expression, stream->has_stream, function.form != StreamForm::kDefault,
                      reached(api, function, policy, *places, *arrays), refusal("    "), real_call(function, guard));
  }
  const std::string indent = guard.needs_room ? "    " : "  ";
  std::string call;
  if (guard.holds_memory) {
    const auto places = addresses_taken(api, function, &policy);
    if (!places) return places.error();
    std::string looked_at;
    const auto plain = plain_addresses(function, *places);
    for (std::size_t index = 0; plain && index < plain->size(); ++index) {
      looked_at += (index == 0 ? "(" : ", ") + as_pointer(function, (*plain)[index]);
    }
    call +=
        indent + "const gate::MappingScope scope" + looked_at + (looked_at.empty() ? ";\n" : ");\n") + refusal(indent);
  }
  call += fmt::format("{}return {};\n", indent, real_call(function, guard));
  if (!guard.needs_room) return body + call;
  return body + "  return contract::with_room([=]() __attribute__((always_inline)) {\n" + call + "  });\n";
}

}  // namespace

Result<std::vector<EmittedFile>> emit_gates(const Inputs& inputs) {
  const Api& api = inputs.driver;
  std::string header = banner(inputs);
  header +=
      R"(// The gates, one for every function that submits work (the gate waits for the lease), reads addresses (no memory moves
// during the call), needs memory besides the program's allocations (a call refused for lack of memory is retried once
// others have made room), begins or ends a capture, or exports something to code that passes no gate (the gate marks
// the process). Each calls the real driver. An override of such a function calls its gate.
#pragma once

#include "generated/driver_functions.h"
#include "generated/driver_symbols.h"

namespace rota::gates {

// By symbol; null if the function does none of this.
extern void* const table[kSymbolCount];

)";
  std::string source = banner(inputs);
  source += R"(#include "generated/driver_gates.h"

#include "generated/driver_real.h"
#include "runtime/contract.h"

namespace rota::gates {

)";
  std::string table;
  for (const std::string& symbol : inputs.symbols) {
    const Function* function = api.find_function(symbol);
    const FunctionPolicy* policy = function ? inputs.policy.find(function->base) : nullptr;
    const Guard guard = function ? guard_of(api, *function, policy) : Guard{};
    if (!guard.any()) {
      table += "    nullptr,\n";
      continue;
    }
    const auto body = gate_body(api, *function, *policy, guard);
    if (!body) return Error{fmt::format("policy.toml: {}: {}", symbol, body.error().text)};
    const std::string signature =
        fmt::format("{} {}({})", qualify(function->result), symbol, qualified_parameters(*function));
    header += signature + ";\n";
    source += fmt::format("{} {{\n{}}}\n", signature, *body);
    table += fmt::format("    reinterpret_cast<void*>(&{}),\n", symbol);
  }
  header += "\n}  // namespace rota::gates\n";
  source += "\nvoid* const table[kSymbolCount] = {\n" + table + "};\n\n}  // namespace rota::gates\n";
  return std::vector<EmittedFile>{{"driver_gates.h", header}, {"driver_gates.cpp", source}};
}

}  // namespace rota::codegen
