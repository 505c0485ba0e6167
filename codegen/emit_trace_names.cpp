// Emits the tables that decode a trace: generated/driver_names.cpp, runtime_names.cpp (their form:
// runtime/trace/names.h), and the schema number by which a reader knows that a file was written by tracers of the same
// plan.
#include <map>
#include <optional>

#include <fmt/format.h>

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

// One row for identical declarations, whichever release or major they come from: rows refer only to earlier rows.
class Rows {
 public:
  std::uint32_t add(const std::string& row) { return add(std::vector<std::string>{row}); }
  // Adds consecutive rows and returns the number of the first.
  std::uint32_t add(const std::vector<std::string>& rows) {
    std::string key;
    for (const std::string& row : rows) key += row + '\n';
    const auto [known, fresh] = numbers_.try_emplace(key, static_cast<std::uint32_t>(rows_.size()));
    if (fresh) rows_.insert(rows_.end(), rows.begin(), rows.end());
    return known->second;
  }
  std::string text(const char* type, const char* name) const {
    std::string text = fmt::format("constexpr {} {}[] = {{\n", type, name);
    for (const std::string& row : rows_) text += "    " + row + ",\n";
    // C++ has no empty arrays; nothing refers to the filler.
    if (rows_.empty()) text += "    {},\n";
    return text + "};\n\n";
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
    return types_.add(fmt::format("{{\"{}\", {}, Kind::{}, {}, {}}}", declared.spelling(),
                                  bytes != 0 ? bytes : type->size, kind, detail, count));
  }

  // An integer parameter that takes flags or enumerators.
  Result<std::uint32_t> integer_as(const TypeRef& declared, const Enum& meant) {
    const auto type = api_->resolve(declared);
    if (!type) return type.error();
    return types_.add(fmt::format("{{\"{}\", {}, Kind::{}, {}, 0}}", declared.spelling(), type->size,
                                  holds_flags(meant.name) ? "kFlags" : "kEnum", enumeration(meant)));
  }

  std::string text() const {
    return types_.text("Type", "kTypes") + enums_.text("Enum", "kEnums") +
           enumerators_.text("Enumerator", "kEnumerators") + records_.text("Record", "kRecords") +
           fields_.text("Field", "kFields");
  }

 private:
  std::uint32_t enumeration(const Enum& enumeration) {
    std::vector<std::string> rows;
    for (const Enumerator& enumerator : enumeration.enumerators) {
      rows.push_back(fmt::format("{{\"{}\", {}}}", enumerator.name, enumerator.value));
    }
    return enums_.add(fmt::format("{{\"{}\", {}, {}}}", enumeration.name, enumerators_.add(rows), rows.size()));
  }

  Result<std::uint32_t> record(const Record& record) {
    std::vector<std::string> rows;
    for (const Field& field : record.fields) {
      const auto type = field_type(record, field);
      if (!type) return type.error();
      const unsigned bit = field.bits == 0 ? 0 : field.bit_offset - static_cast<unsigned>(field.offset * 8);
      rows.push_back(fmt::format("{{\"{}\", {}, {}, {}, {}}}", field.name, *type, field.offset, field.bits, bit));
    }
    return records_.add(
        fmt::format("{{\"{}\", {}, {}, {}}}", record.name, record.is_union, fields_.add(rows), rows.size()));
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
    std::uint32_t number = types_.add(
        fmt::format("{{\"{}\", {}, Kind::kRecord, {}, 0}}", inner.is_union ? "union" : "struct", inner.size, *nested));
    // An array of a struct defined in place.
    std::uint64_t bytes = inner.size;
    for (auto extent = field.type.extents.rbegin(); extent != field.type.extents.rend(); ++extent) {
      bytes *= *extent;
      number = types_.add(fmt::format("{{\"array\", {}, Kind::kArray, {}, {}}}", bytes, number, *extent));
    }
    return number;
  }

  const Api* api_ = nullptr;
  Rows types_;
  Rows enums_;
  Rows enumerators_;
  Rows records_;
  Rows fields_;
};

}  // namespace

Result<std::string> emit_name_tables(const Inputs& inputs, const std::vector<TraceSection>& sections,
                                     const std::string& accessor, std::uint64_t& schema) {
  NameTables tables;
  std::string functions;
  std::string parameters;
  std::string captures;
  std::size_t parameter_count = 0;
  std::size_t capture_count = 0;
  const auto append = [&](const Api& api, const TracePlan& plan) -> std::optional<Error> {
    if (plan.function == nullptr) {
      functions +=
          fmt::format("    {{\"{}\", {}, {}, 0, 0, false, true, 0}},\n", plan.name, parameter_count, capture_count);
      return std::nullopt;
    }
    const Function& function = *plan.function;
    const auto result = tables.type(function.result);
    if (!result) return Error{fmt::format("{}: {}", plan.name, result.error().text)};
    functions +=
        fmt::format("    {{\"{}\", {}, {}, {}, {}, true, {}, {}}},\n", plan.name, parameter_count, capture_count,
                    function.parameters.size(), plan.captures.size(), plan.result_in_value, *result);
    const auto meant_by = [&](const Parameter& parameter) {
      return enumeration_meant(api, function.base, parameter.name);
    };
    for (const Parameter& parameter : function.parameters) {
      const Enum* const meant = parameter.type.is_pointer() ? nullptr : meant_by(parameter);
      const auto type = meant == nullptr ? tables.type(parameter.type) : tables.integer_as(parameter.type, *meant);
      if (!type) return Error{fmt::format("{}: {}: {}", plan.name, parameter.name, type.error().text)};
      parameters += fmt::format("    {{\"{}\", {}}},\n", parameter.name, *type);
      ++parameter_count;
    }
    for (const TraceCapture& capture : plan.captures) {
      const Enum* const meant =
          capture.parameter < 0 ? nullptr : meant_by(function.parameters[static_cast<std::size_t>(capture.parameter)]);
      const auto type = meant == nullptr ? tables.type(capture.type, capture.text ? 0 : capture.bytes)
                                         : tables.integer_as(capture.type, *meant);
      if (!type) return Error{fmt::format("{}: {}", plan.name, type.error().text)};
      const std::string& field = capture.behind.field;
      captures += fmt::format("    {{{}, {}, CaptureKind::{}, {}, {}, {}}},\n", capture.parameter, capture.at_return,
                              capture.text ? "kText" : "kElements", capture.list, *type,
                              field.empty() ? "nullptr" : fmt::format("\"{}\"", field));
      ++capture_count;
    }
    return std::nullopt;
  };
  for (const TraceSection& section : sections) {
    tables.begin(*section.api);
    for (const TracePlan& plan : section.plans) {
      if (auto error = append(*section.api, plan)) return *error;
    }
  }
  const std::string body = "constexpr Function kFunctions[] = {\n" + functions +
                           "};\n\nconstexpr Parameter kParameters[] = {\n" + parameters +
                           "};\n\nconstexpr Capture kCaptures[] = {\n" + captures + "};\n\n" + tables.text();
  schema = hash(body);
  return banner(inputs) +
         "// See runtime/trace/names.h.\n#include \"runtime/trace/names.h\"\n\nnamespace rota::names {\n"
         "namespace {\n\n" +
         body + "}  // namespace\n\nconst Api& " + accessor + "() {\n" +
         fmt::format(
             "  static constexpr Api api{{0x{:016x}, 0, kFunctions, kParameters, kCaptures, kTypes, kEnums, "
             "kEnumerators, "
             "kRecords,\n                           kFields}};\n  return api;\n}}\n\n}}  // namespace rota::names\n",
             schema);
}

}  // namespace rota::codegen
