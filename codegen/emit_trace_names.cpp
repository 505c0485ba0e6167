// Emits the rows from which runtime/trace/rows.h makes both the tracers and the tables that decode a trace, and the
// schema number by which a reader knows that a file was written by tracers of the same rows.
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/emit_trace.h"

namespace rota::codegen {
namespace {

// FNV-1a: stable across compilers and runs, which is all that is needed.
std::uint64_t hash(const std::string& text) {
  std::uint64_t value = 14695981039346656037u;
  for (const char letter : text) {
    value ^= static_cast<unsigned char>(letter);
    value *= 1099511628211u;
  }
  return value;
}

// "CUctx_flags", "cudaMemcpyFlags", "cudaAtomicOperationCapability": values that are combined with |.
bool holds_flags(const std::string& name) {
  return name.find("lags") != std::string::npos || name.find("FLAGS") != std::string::npos ||
         name.find("Capability") != std::string::npos;
}

// Integers that are addresses or handles, by the typedef that the header uses.
bool is_address_typedef(const std::string& base) {
  return base.starts_with("CUdeviceptr") || base.starts_with("CUtexObject") || base.starts_with("CUsurfObject") ||
         base.starts_with("CUmemGenericAllocationHandle") || base == "cudaTextureObject_t" ||
         base == "cudaSurfaceObject_t";
}

// "{"Width", 3, 4}": trailing zeros are omitted, except for the type.
std::string braced(const std::string& name, std::vector<std::uint64_t> numbers) {
  while (numbers.size() > 1 && numbers.back() == 0) numbers.pop_back();
  return fmt::format("{{\"{}\", {}}}", name, fmt::join(numbers, ", "));
}

// Rows by number; one for identical declarations, whichever release or major they come from.
class Rows {
 public:
  std::uint32_t add(const std::string& row) {
    const auto [known, fresh] = numbers_.try_emplace(row, static_cast<std::uint32_t>(rows_.size()));
    if (fresh) rows_.push_back(row);
    return known->second;
  }
  // With its number in the place of each row's '#'.
  std::vector<std::string> numbered() const {
    std::vector<std::string> rows = rows_;
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].replace(rows[i].find('#'), 1, std::to_string(i));
    return rows;
  }

 private:
  std::map<std::string, std::uint32_t> numbers_;
  std::vector<std::string> rows_;
};

class NameTables {
 public:
  // From here on, types are those of this API.
  void begin(const Api& api) { api_ = &api; }

  // `bytes`: how many bytes of a record every caller has; 0: all.
  Result<std::uint32_t> type(const TypeRef& declared, std::uint64_t bytes = 0) {
    const auto type = api_->resolve(declared);
    if (!type) return type.error();
    std::string kind = "kOpaque";
    std::uint32_t detail = 0;
    std::uint64_t count = 0;
    switch (type->kind) {
      case TypeKind::kVoid:
        break;
      case TypeKind::kBool:
        kind = "kBool";
        break;
      case TypeKind::kCharacter:
        kind = "kCharacter";
        break;
      case TypeKind::kSigned:
        kind = "kSigned";
        break;
      case TypeKind::kUnsigned:
        kind = is_address_typedef(declared.base) && !declared.is_pointer() ? "kAddress" : "kUnsigned";
        break;
      case TypeKind::kFloat:
        kind = "kFloat";
        break;
      case TypeKind::kPointer:
      case TypeKind::kCallback:
        kind = "kAddress";
        break;
      case TypeKind::kEnum:
        kind = holds_flags(type->enumeration->name) ? "kFlags" : "kEnum";
        detail = enumeration(*type->enumeration);
        break;
      case TypeKind::kRecord: {
        if (type->size == 0) break;
        kind = "kRecord";
        const auto known = record(*type->record);
        if (!known) return known.error();
        detail = *known;
        break;
      }
      case TypeKind::kArray: {
        kind = "kArray";
        const auto element = this->type(type->pointee);
        if (!element) return element.error();
        detail = *element;
        count = declared.extents.empty() ? 0 : declared.extents.front();
        break;
      }
    }
    return add_type(declared.spelling(), bytes != 0 ? bytes : type->size, kind, detail, count);
  }

  // An integer parameter that takes flags or enumerators.
  Result<std::uint32_t> integer_as(const TypeRef& declared, const Enum& meant) {
    const auto type = api_->resolve(declared);
    if (!type) return type.error();
    return add_type(declared.spelling(), type->size, holds_flags(meant.name) ? "kFlags" : "kEnum", enumeration(meant));
  }

  std::string text() const {
    return "\n" + wrapped(types_.numbered()) + "\n" + joined(enums_) + "\n" + joined(records_);
  }

 private:
  static std::string joined(const Rows& rows) {
    std::string text;
    for (const std::string& row : rows.numbered()) text += row;
    return text;
  }

  std::uint32_t add_type(const std::string& name, std::uint64_t bytes, const std::string& kind, std::uint32_t detail,
                         std::uint64_t count = 0) {
    std::string numbers;
    if (detail != 0 || count != 0) numbers = fmt::format(", {}", detail);
    if (count != 0) numbers += fmt::format(", {}", count);
    return types_.add(fmt::format("ROTA_TYPE(#, \"{}\", {}, {}{})", name, bytes, kind, numbers));
  }

  std::uint32_t enumeration(const Enum& enumeration) {
    std::vector<std::string> items{fmt::format("ROTA_ENUM(#, \"{}\"", enumeration.name)};
    for (const Enumerator& enumerator : enumeration.enumerators) {
      items.push_back(fmt::format("{{\"{}\", {}}}", enumerator.name, enumerator.value));
    }
    return enums_.add(row(items));
  }

  Result<std::uint32_t> record(const Record& record) {
    std::vector<std::string> items{
        fmt::format("{}(#, \"{}\"", record.is_union ? "ROTA_UNION" : "ROTA_STRUCT", record.name)};
    for (const Field& field : record.fields) {
      const auto type = field_type(record, field);
      if (!type) return type.error();
      const unsigned bit = field.bits == 0 ? 0 : field.bit_offset - static_cast<unsigned>(field.offset * 8);
      items.push_back(braced(field.name, {*type, field.offset, field.bits, bit}));
    }
    return records_.add(row(items));
  }

  Result<std::uint32_t> field_type(const Record& record, const Field& field) {
    if (field.nested.empty()) {
      const Enum* const meant = field.type.is_pointer() ? nullptr : enumeration_meant(*api_, record.name, field.name);
      const auto type = meant == nullptr ? this->type(field.type) : integer_as(field.type, *meant);
      if (!type) return Error{fmt::format("{}.{}: {}", record.name, field.name, type.error().text)};
      return *type;
    }
    const Record& inner = field.nested.front();
    const auto nested = this->record(inner);
    if (!nested) return nested.error();
    std::uint32_t number = add_type(inner.is_union ? "union" : "struct", inner.size, "kRecord", *nested);
    // An array of a struct defined in place.
    std::uint64_t bytes = inner.size;
    for (auto extent = field.type.extents.rbegin(); extent != field.type.extents.rend(); ++extent) {
      bytes *= *extent;
      number = add_type("array", bytes, "kArray", number, *extent);
    }
    return number;
  }

  const Api* api_ = nullptr;
  Rows types_;
  Rows enums_;
  Rows records_;
};

// "times(2)": how many elements an array has.
Result<std::string> count_of(const Api& api, const Function& function, const TraceCapture& capture) {
  const Parameter* const parameter = function.find_parameter(capture.count);
  if (parameter == nullptr) return fmt::format("fixed({})", capture.count);
  const auto index = parameter - function.parameters.data();
  if (!capture.count_is_pointer) return fmt::format("times({})", index);
  const auto pointer = api.resolve(parameter->type);
  if (!pointer) return pointer.error();
  const auto count = api.resolve(pointer->pointee);
  if (!count) return count.error();
  return fmt::format("times_at({}, {})", index, count->size);
}

// One of the functions of runtime/trace/rows.h, as a call: "out(0, 7)".
Result<std::string> capture_item(const Api& api, const Function& function, const TraceCapture& capture,
                                 std::uint32_t type) {
  const std::string what = fmt::format("{}, {}", capture.parameter, type);
  const std::string direction = capture.at_return ? "out" : "in";
  if (!capture.behind.field.empty()) {
    return fmt::format("in_list_behind({}, \"{}\", {}, {}, {})", what, capture.behind.field, capture.behind.pointer,
                       capture.behind.count, capture.behind.count_bytes);
  }
  if (capture.text_behind) return fmt::format("out_text_behind({})", what);
  const bool one = capture.count.empty() || capture.count == "1";
  if (one && !capture.list) return fmt::format("{}{}({})", direction, capture.text ? "_text" : "", what);
  const auto count = count_of(api, function, capture);
  if (!count) return count.error();
  return fmt::format("{}{}({}, {})", direction, capture.text ? "_text" : "_list", what, *count);
}

// One row for each of a section's functions.
Result<std::string> function_rows(NameTables& tables, const TraceSection& section) {
  const Api& api = *section.api;
  std::string text;
  std::size_t number = section.first;
  for (const TracePlan& plan : section.plans) {
    if (plan.function == nullptr) {
      text += fmt::format("ROTA_UNTRACED({}, {})\n", number++, plan.name);
      continue;
    }
    const Function& function = *plan.function;
    const auto result = tables.type(function.result);
    if (!result) return Error{fmt::format("{}: {}", plan.name, result.error().text)};
    const auto meant_by = [&](const Parameter& parameter) {
      return enumeration_meant(api, function.base, parameter.name);
    };
    std::vector<std::string> items{fmt::format("ROTA_TRACED({}, {}", number++, plan.name), fmt::format("{}", *result)};
    std::string list = "(";
    for (const Parameter& parameter : function.parameters) {
      const Enum* const meant = parameter.type.is_pointer() ? nullptr : meant_by(parameter);
      const auto type = meant == nullptr ? tables.type(parameter.type) : tables.integer_as(parameter.type, *meant);
      if (!type) return Error{fmt::format("{}: {}: {}", plan.name, parameter.name, type.error().text)};
      const bool last = &parameter == &function.parameters.back();
      items.push_back(list + braced(parameter.name, {*type}) + (last ? ")" : ""));
      list.clear();
    }
    if (function.parameters.empty()) items.push_back("()");
    for (const TraceCapture& capture : plan.captures) {
      const Enum* const meant =
          capture.parameter < 0 ? nullptr : meant_by(function.parameters[static_cast<std::size_t>(capture.parameter)]);
      const auto type = meant == nullptr ? tables.type(capture.type, capture.text ? 0 : capture.bytes)
                                         : tables.integer_as(capture.type, *meant);
      if (!type) return Error{fmt::format("{}: {}", plan.name, type.error().text)};
      const auto item = capture_item(api, function, capture, *type);
      if (!item) return Error{fmt::format("{}: {}", plan.name, item.error().text)};
      items.push_back(*item);
    }
    text += row(items);
  }
  return text;
}

}  // namespace

Result<std::vector<EmittedFile>> emit_trace_rows(const Inputs& inputs, const std::vector<TraceSection>& sections,
                                                 const std::string& api, std::uint64_t& schema) {
  NameTables tables;
  std::string functions;
  for (const TraceSection& section : sections) {
    tables.begin(*section.api);
    const auto rows = function_rows(tables, section);
    if (!rows) return rows.error();
    functions += *rows;
  }
  const std::string types = tables.text();
  schema = hash(functions + types);
  return std::vector<EmittedFile>{
      {api + "_trace_functions.inc",
       banner(inputs) +
           "// ROTA_TRACED(number, name, result, (parameters), captures...): what a trace records of each function,\n"
           "// with types by their row in " +
           api +
           "_trace_types.inc. See runtime/trace/rows.h.\n"
           "// ROTA_UNTRACED(number, name): exported, but no header declares it.\n" +
           functions},
      {api + "_trace_types.inc",
       banner(inputs) +
           "// Types, enums, and structs and unions, each by number. See runtime/trace/rows.h.\n"
           "// ROTA_TYPE(number, name, bytes, kind, detail, count)\n"
           "// ROTA_ENUM(number, name, enumerators...)\n"
           "// ROTA_STRUCT(number, name, fields...), ROTA_UNION(number, name, fields...): a field is name, type, "
           "offset, bits, bit\n" +
           types}};
}

}  // namespace rota::codegen
