#include "codegen/emit_types.h"

#include <algorithm>

#include <fmt/format.h>

namespace rota::codegen {
namespace {

std::string parameters(const std::vector<Parameter>& list) {
  std::string text;
  for (const Parameter& parameter : list) {
    text += (text.empty() ? "" : ", ") + parameter.type.declare(parameter.name);
  }
  return text;
}

// The alignment without an attribute, in bytes.
std::uint64_t natural_alignment(const Api& api, const TypeRef& type) {
  const auto resolved = api.resolve(type);
  if (!resolved) return 1;
  if (resolved->kind == TypeKind::kArray) return natural_alignment(api, resolved->pointee);
  if (resolved->kind == TypeKind::kRecord) return std::max<std::uint64_t>(resolved->record->align, 1);
  return std::max<std::uint64_t>(resolved->size, 1);
}

std::uint64_t natural_alignment(const Api& api, const Record& record) {
  std::uint64_t largest = 1;
  for (const Field& field : record.fields) {
    const std::uint64_t alignment =
        field.nested.empty() ? natural_alignment(api, field.type) : field.nested.front().align;
    largest = std::max(largest, alignment);
  }
  return largest;
}

void append_record(const Api& api, std::string& text, const Record& record, const std::string& indent) {
  text += record.is_union ? "union" : "struct";
  if (record.align > natural_alignment(api, record)) text += fmt::format(" alignas({})", record.align);
  text += (record.name.empty() ? "" : " " + record.name) + " {\n";
  for (const Field& field : record.fields) {
    text += indent + "  ";
    if (field.nested.empty()) {
      text += field.type.declare(field.name);
      if (field.bits != 0) text += fmt::format(" : {}", field.bits);
    } else {
      append_record(api, text, field.nested.front(), indent + "  ");
      if (!field.name.empty()) text += " " + field.name;
      for (const std::uint64_t extent : field.type.extents) text += fmt::format("[{}]", extent);
    }
    text += ";\n";
  }
  text += indent + "}";
}

// `path` leads to the record from the outermost one; anonymous members add nothing to it. Arrays of records end it.
void append_offsets(std::string& text, const std::string& outermost, const std::string& path, std::uint64_t base,
                    const Record& record) {
  for (const Field& field : record.fields) {
    if (field.bits == 0 && !field.name.empty()) {
      text +=
          fmt::format("static_assert(offsetof({}, {}{}) == {});\n", outermost, path, field.name, base + field.offset);
    }
    if (!field.nested.empty() && field.type.extents.empty()) {
      append_offsets(text, outermost, field.name.empty() ? path : path + field.name + ".", base + field.offset,
                     field.nested.front());
    }
  }
}

void append_enum(std::string& text, const Enum& enumeration) {
  text += fmt::format("enum {} : {} {{\n", enumeration.name, enumeration.underlying);
  for (const Enumerator& enumerator : enumeration.enumerators) {
    text += fmt::format("  {} = {},\n", enumerator.name, enumerator_value(enumeration, enumerator.value));
  }
  text += "};\n";
}

}  // namespace

std::string enumerator_value(const Enum& enumeration, std::int64_t value) {
  if (enumeration.underlying == "unsigned int") return fmt::format("{}U", static_cast<std::uint32_t>(value));
  if (value == -2147483648LL) return "-2147483647 - 1";
  return std::to_string(value);
}

std::string qualify(const TypeRef& type, const std::string& prefix) {
  TypeRef qualified = type;
  if (!is_builtin_type(type.base)) qualified.base = prefix + type.base;
  return qualified.spelling();
}

Result<std::string> type_declarations(const Api& api) {
  std::string text = "// Declared before use: handles are pointers to structs that only the driver defines.\n";
  for (const Record& record : api.records)
    text += fmt::format("{} {};\n", record.is_union ? "union" : "struct", record.name);
  text += '\n';
  std::string layouts;
  for (const Declaration& declaration : api.declarations) {
    switch (declaration.kind) {
      case DeclarationKind::kEnum:
        append_enum(text, api.enums[declaration.index]);
        break;
      case DeclarationKind::kTypedef: {
        const Typedef& alias = api.typedefs[declaration.index];
        if (const auto resolved = api.resolve(alias.type); !resolved) {
          return Error{fmt::format("typedef {}: {}", alias.name, resolved.error().text)};
        }
        text += fmt::format("using {} = {};\n", alias.name, alias.type.spelling());
        break;
      }
      case DeclarationKind::kCallback: {
        const Callback& callback = api.callbacks[declaration.index];
        text += fmt::format("using {} = {}{}({});\n", callback.name, callback.result.spelling(),
                            callback.pointer ? " (*)" : "", parameters(callback.parameters));
        break;
      }
      case DeclarationKind::kRecord: {
        const Record& record = api.records[declaration.index];
        if (!record.complete) break;
        append_record(api, text, record, "");
        text += ";\n";
        layouts += fmt::format("static_assert(sizeof({0}) == {1} && alignof({0}) == {2});\n", record.name, record.size,
                               record.align);
        append_offsets(layouts, record.name, "", 0, record);
        break;
      }
    }
  }
  return text + "\n// Layouts, as measured by the compiler that read the headers.\n" + layouts;
}

Result<EmittedFile> emit_types_h(const Inputs& inputs) {
  auto declarations = type_declarations(inputs.driver);
  if (!declarations) return declarations.error();
  std::string text = banner(inputs);
  text += R"(// Every type of the driver API, in its own namespace: compiles with and without cuda.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace rota::api {

)";
  text += *declarations;
  text += "\n}  // namespace rota::api\n";
  return EmittedFile{"driver_types.h", text};
}

}  // namespace rota::codegen
