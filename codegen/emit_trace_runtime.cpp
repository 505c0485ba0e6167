// Emits the runtime API's tracing wrappers, generated/runtime_trace*.cpp, using types that are passed in the same way
// as the runtime's: its headers change signatures between majors under one name, and the shim is built without them.
//
// The majors share most signatures, so a tracer is a template over the function's number, instantiated for each major
// whose libcudart has it that way.
#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "codegen/emit_trace.h"

namespace rota::codegen {
namespace {

// Types that the compiler passes and returns in the same way as the runtime's own.
class Lowering {
 public:
  Result<std::string> type(const Api& api, const TypeRef& declared) {
    const auto type = api.resolve(declared);
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
        return record(api, *type->record);
    }
    return Error{"unknown type"};
  }

  const std::string& records() const { return text_; }

 private:
  // Majors whose types of one name are passed in the same way share a type here; else the second is numbered.
  Result<std::string> record(const Api& api, const Record& record) {
    auto body = members(api, record);
    if (!body) return Error{fmt::format("{} is passed by value: {}", record.name, body.error().text)};
    std::vector<std::string>& bodies = done_[record.name];
    const auto known = std::ranges::find(bodies, *body);
    const auto number = static_cast<std::size_t>(known - bodies.begin()) + 1;
    const std::string name = "By" + record.name + (number == 1 ? "" : fmt::format("_{}", number));
    if (known != bodies.end()) return name;
    bodies.push_back(*body);
    text_ += fmt::format("struct {0} {{\n{1}}};\nstatic_assert(sizeof({0}) == {2});\n\n", name, *body, record.size);
    return name;
  }

  Result<std::string> members(const Api& api, const Record& record) {
    if (!record.complete) return Error{"its layout is unknown"};
    // A record that does not fit in two registers is passed in memory, whatever it holds (this API has no homogeneous
    // float aggregates).
    if (record.size > 16) return fmt::format("  alignas({}) unsigned char bytes[{}];\n", record.align, record.size);
    // Smaller ones by the classes of their eight-byte parts: all integers, pointers among them, are of one class. Then
    // it makes no difference which member of a union is used, so words of the alignment's size represent all of it.
    if (auto other = not_integer(api, record)) return Error{fmt::format("no rule for {} in it", *other)};
    if (record.align == 0 || record.size % record.align != 0) return Error{"its size is no multiple of its alignment"};
    return fmt::format("  std::uint{}_t words[{}];\n", record.align * 8, record.size / record.align);
  }

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

  std::map<std::string, std::vector<std::string>> done_;
  std::string text_;
};

}  // namespace

namespace {

// The tracers by their text, with names that distinguish variants.
class Tracers {
 public:
  // Returns the tracer's name.
  std::string add(const TracePlan& plan, int major, std::string signature_and_body) {
    auto& variants = variants_[plan.name];
    for (const auto& [name, text] : variants) {
      if (text == signature_and_body) return name;
    }
    const std::string name = variants.empty() ? plan.name : fmt::format("{}_cudart{}", plan.name, major);
    variants.emplace_back(name, std::move(signature_and_body));
    return name;
  }

  std::string text() const {
    std::string text;
    for (const auto& [symbol, variants] : variants_) {
      for (const auto& [name, tracer] : variants) {
        const std::size_t place = tracer.find('@');
        text += "template <std::uint32_t number_>\n" + tracer.substr(0, place) + name + tracer.substr(place + 1) + "\n";
      }
    }
    return text;
  }

 private:
  std::map<std::string, std::vector<std::pair<std::string, std::string>>> variants_;
};

// "uint32_t @(void* devPtr, uint64_t size) { … }": the @ stands for the name.
Result<std::string> tracer_text(const Api& api, const TracePlan& plan, Lowering& lowering) {
  std::string declaration;
  std::string arguments;
  std::string types;
  for (const Parameter& parameter : plan.function->parameters) {
    const auto type = lowering.type(api, parameter.type);
    if (!type) return Error{fmt::format("{}: {}", plan.name, type.error().text)};
    if (!declaration.empty()) declaration += ", ", arguments += ", ", types += ", ";
    declaration += *type + " " + parameter.name;
    arguments += parameter.name;
    types += *type;
  }
  const auto result = lowering.type(api, plan.function->result);
  if (!result) return Error{fmt::format("{}: {}", plan.name, result.error().text)};
  const std::string call =
      fmt::format("reinterpret_cast<{}(*)({})>(rota_cudart_real[number_])({})", *result, types, arguments);
  // Lowered pointers have lost their types; captures state the element size, and strings are char.
  const auto body = tracer_body(api, plan, "number_", "kRuntimeApi", *result, call);
  if (!body) return body.error();
  return fmt::format("{} @({}) {{\n{}}}\n", *result, declaration, *body);
}

}  // namespace

Result<std::vector<EmittedFile>> emit_runtime_tracers(const Inputs& inputs, const std::vector<TraceSection>& sections) {
  const std::string head = banner(inputs);
  std::vector<EmittedFile> files;
  Lowering lowering;
  Tracers tracers;
  std::string table;
  std::string names;
  std::string symbols =
      head +
      "// ROTA_CUDART_SYMBOL(major, node, name): what each libcudart exports under its version node. A\n"
      "// function's number in a trace is its position here.\n";
  std::string majors;
  std::size_t count = 0;
  for (const TraceSection& section : sections) {
    const RuntimeMajor& major = *section.major;
    std::string own = head + fmt::format("// ROTA_SYMBOL(name): what {} exports.\n", major.library);
    for (std::size_t i = 0; i < section.plans.size(); ++i) {
      const TracePlan& plan = section.plans[i];
      own += fmt::format("ROTA_SYMBOL({})\n", plan.name);
      symbols += fmt::format("ROTA_CUDART_SYMBOL({}, {}, {})\n", major.major, major.library, plan.name);
      names += fmt::format("    \"{}\",\n", plan.name);
      if (plan.function == nullptr) {
        table += fmt::format("    nullptr,  // {}\n", plan.name);
        continue;
      }
      auto text = tracer_text(*section.api, plan, lowering);
      if (!text) return Error{fmt::format("libcudart {}: {}", major.major, text.error().text)};
      table += fmt::format("    reinterpret_cast<void*>(&{}<{}>),\n", tracers.add(plan, major.major, std::move(*text)),
                           section.first + i);
    }
    majors +=
        fmt::format("    {{{}, \"{}\", {}, {}}},\n", major.major, major.library, section.first, section.plans.size());
    count += section.plans.size();
    files.push_back({fmt::format("runtime_symbols_{}.inc", major.major), own});
  }
  files.push_back({"runtime_symbols.inc", symbols});
  files.push_back(
      {"runtime_trace.h",
       head + fmt::format(
                  R"(// The runtime API's symbols and tracers for every libcudart major. See runtime/preload/cudart.
#pragma once

#include <cstddef>
#include <cstdint>

inline constexpr std::size_t kRotaCudartSymbols = {0};
inline constexpr std::size_t kRotaCudartMajors = {1};

struct RotaCudartMajor {{
  int major;
  const char* library;  // SONAME, and version node of its symbols
  std::uint32_t first;  // number of its first symbol
  std::uint32_t count;
}};

extern "C" {{
extern const RotaCudartMajor rota_cudart_majors[kRotaCudartMajors];
// By number, the position in runtime_symbols.inc. Filled before the first call of a major goes through.
extern void* rota_cudart_real[kRotaCudartSymbols];
extern const char* const rota_cudart_names[kRotaCudartSymbols];
}}

namespace rota::runtime_tracers {{
// Null if the signature is not known: the call is passed on without being recorded.
extern void* const table[kRotaCudartSymbols];
}}  // namespace rota::runtime_tracers
)",
                  count, sections.size())});
  files.push_back(
      {"runtime_trace.cpp",
       head +
           "// See runtime_trace.h; numbers are positions in runtime_symbols.inc.\n"
           "#include \"generated/runtime_trace.h\"\n\n#include <cstdint>\n\n"
           "#include \"runtime/trace/record.h\"\n\nnamespace rota::runtime_tracers {\nnamespace {\n\n" +
           lowering.records() + tracers.text() + "}  // namespace\n\nvoid* const table[kRotaCudartSymbols] = {\n" +
           table + "};\n\n}  // namespace rota::runtime_tracers\n\nconst RotaCudartMajor rota_cudart_majors[] = {\n" +
           majors + "};\nconst char* const rota_cudart_names[kRotaCudartSymbols] = {\n" + names + "};\n"});
  return files;
}

}  // namespace rota::codegen
