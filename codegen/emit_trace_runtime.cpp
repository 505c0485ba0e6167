// Emits what libcudart's majors export, and checks that their functions can be traced by types that are passed in the
// same way as the runtime's own: its headers change signatures between majors under one name, and the shim is built
// without them (runtime/preload/cudart/tracers.cpp).
#include <optional>

#include <fmt/format.h>

#include "codegen/emit_trace.h"

namespace rota::codegen {
namespace {

std::optional<std::string> not_integer(const Api& api, const Record& record) {
  for (const Field& field : record.fields) {
    if (!field.nested.empty()) {
      if (auto other = not_integer(api, field.nested.front())) return other;
      continue;
    }
    TypeRef element = field.type;
    while (!element.extents.empty()) element = element.element();
    const auto type = api.resolve(element);
    if (!type) return type.error().text;
    if (type->kind == TypeKind::kFloat) return "a floating-point number";
    if (type->kind != TypeKind::kRecord) continue;
    if (auto other = not_integer(api, *type->record)) return other;
  }
  return std::nullopt;
}

// Why bytes of the record's size would be passed or returned in another way; nothing: they are not.
std::optional<std::string> passed_otherwise(const Api& api, const TypeRef& declared) {
  const auto type = api.resolve(declared);
  if (!type) return type.error().text;
  if (type->kind != TypeKind::kRecord) return std::nullopt;
  const Record& record = *type->record;
  const auto because = [&](const std::string& why) {
    return fmt::format("{} is passed by value: {}", record.name, why);
  };
  if (!record.complete) return because("its layout is unknown");
  if (record.align == 0 || record.align > 8) return because("no rule for its alignment");
  // A record that does not fit in two registers is passed in memory, whatever it holds (this API has no homogeneous
  // float aggregates). Smaller ones by the classes of their eight-byte parts: all integers, pointers among them, are of
  // one class. Then it makes no difference which member of a union is used.
  if (record.size > 16) return std::nullopt;
  if (auto other = not_integer(api, record)) return because(fmt::format("no rule for {} in it", *other));
  if (record.size % 4 != 0) return because("its size is no multiple of 4");
  return std::nullopt;
}

}  // namespace

Result<std::vector<EmittedFile>> emit_runtime_symbols(const Inputs& inputs, const std::vector<TraceSection>& sections) {
  std::string symbols = banner(inputs) +
                        "// ROTA_CUDART_SYMBOL(major, node, name): what each libcudart exports under its version node. "
                        "A\n// function's number in a trace is its position here.\n";
  std::string majors = banner(inputs) +
                       "// ROTA_CUDART_MAJOR(major, library, first, count): a libcudart's SONAME, which is its version "
                       "node too, and its\n// symbols in runtime_symbols.inc.\n";
  for (const TraceSection& section : sections) {
    const RuntimeMajor& major = *section.major;
    for (const TracePlan& plan : section.plans) {
      symbols += fmt::format("ROTA_CUDART_SYMBOL({}, {}, {})\n", major.major, major.library, plan.name);
      if (plan.function == nullptr) continue;
      auto problem = passed_otherwise(*section.api, plan.function->result);
      for (const Parameter& parameter : plan.function->parameters) {
        if (!problem) problem = passed_otherwise(*section.api, parameter.type);
      }
      if (problem) return Error{fmt::format("libcudart {}: {}: {}", major.major, plan.name, *problem)};
    }
    majors += fmt::format("ROTA_CUDART_MAJOR({}, {}, {}, {})\n", major.major, major.library, section.first,
                          section.plans.size());
  }
  return std::vector<EmittedFile>{{"runtime_symbols.inc", symbols}, {"runtime_majors.inc", majors}};
}

}  // namespace rota::codegen
