// Emits the tables that decode a trace: generated/driver_names.cpp, runtime_names.cpp (their form:
// runtime/trace/names.h), and the schema number by which a reader knows that a file was written by tracers of the same
// plan.
#include <map>

#include <fmt/format.h>

#include "codegen/emit_trace.h"

namespace rota::codegen {
namespace {

// FNV-1a: stable over compilers and runs, and no more is needed of it.
std::uint64_t hash(const std::string& text) {
  std::uint64_t value = 14695981039346656037u;
  for (const char letter : text) {
    value ^= static_cast<unsigned char>(letter);
    value *= 1099511628211u;
  }
  return value;
}

// "CUctx_flags", "cudaMemcpyFlags", "CUstreamWaitValue_flags_enum": values to be joined with |.
bool holds_flags(const std::string& name) {
  return name.find("lags") != std::string::npos || name.find("FLAGS") != std::string::npos;
}

// Integers that are addresses or handles, by the typedef that the header uses.
bool is_address_typedef(const std::string& base) {
  return base.starts_with("CUdeviceptr") || base.starts_with("CUtexObject") || base.starts_with("CUsurfObject") ||
         base.starts_with("CUmemGenericAllocationHandle") || base == "cudaTextureObject_t" ||
         base == "cudaSurfaceObject_t";
}

class NameTables {
 public:
  explicit NameTables(const Api& api) : api_(api) {}

  Result<std::uint32_t> type(const TypeRef& declared) {
    const std::string name = declared.spelling();
    if (const auto known = type_numbers_.find(name); known != type_numbers_.end()) return known->second;
    const auto type = api_.resolve(declared);
    if (!type) return type.error();
    const std::uint32_t number = take_number(name);
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
    types_[number] = fmt::format("{{\"{}\", {}, Kind::{}, {}, {}}}", name, type->size, kind, detail, count);
    return number;
  }

  // An integer parameter that takes flags or enumerators.
  Result<std::uint32_t> integer_as(const TypeRef& declared, const Enum& meant) {
    const std::string name = declared.spelling() + "/" + meant.name;
    if (const auto known = type_numbers_.find(name); known != type_numbers_.end()) return known->second;
    const auto type = api_.resolve(declared);
    if (!type) return type.error();
    const std::uint32_t number = take_number(name);
    types_[number] = fmt::format("{{\"{}\", {}, Kind::{}, {}, 0}}", declared.spelling(), type->size,
                                 holds_flags(meant.name) ? "kFlags" : "kEnum", enumeration(meant));
    return number;
  }

  std::string text() const {
    const auto list = [](const char* type, const char* name, const std::vector<std::string>& rows) {
      std::string text = fmt::format("constexpr {} {}[] = {{\n", type, name);
      for (const std::string& row : rows) text += "    " + row + ",\n";
      // An array of no elements is no C++; nothing refers to the filler.
      if (rows.empty()) text += "    {},\n";
      return text + "};\n\n";
    };
    return list("Type", "kTypes", types_) + list("Enum", "kEnums", enums_) +
           list("Enumerator", "kEnumerators", enumerators_) + list("Record", "kRecords", records_) +
           list("Field", "kFields", fields_);
  }

 private:
  std::uint32_t take_number(const std::string& name) {
    const auto number = static_cast<std::uint32_t>(types_.size());
    types_.emplace_back();
    type_numbers_.emplace(name, number);
    return number;
  }

  std::uint32_t enumeration(const Enum& enumeration) {
    if (const auto known = enum_numbers_.find(enumeration.name); known != enum_numbers_.end()) return known->second;
    const auto number = static_cast<std::uint32_t>(enums_.size());
    enum_numbers_.emplace(enumeration.name, number);
    enums_.push_back(
        fmt::format("{{\"{}\", {}, {}}}", enumeration.name, enumerators_.size(), enumeration.enumerators.size()));
    for (const Enumerator& enumerator : enumeration.enumerators) {
      enumerators_.push_back(fmt::format("{{\"{}\", {}}}", enumerator.name, enumerator.value));
    }
    return number;
  }

  Result<std::uint32_t> record(const Record& record) {
    const bool named = !record.name.empty();
    if (named) {
      if (const auto known = record_numbers_.find(record.name); known != record_numbers_.end()) return known->second;
    }
    const auto number = static_cast<std::uint32_t>(records_.size());
    records_.emplace_back();
    if (named) record_numbers_.emplace(record.name, number);
    // Fields of one record lie together, so nested records are numbered before them.
    std::vector<std::string> rows;
    for (const Field& field : record.fields) {
      std::uint32_t type_number = 0;
      if (!field.nested.empty()) {
        const auto nested = this->record(field.nested.front());
        if (!nested) return nested.error();
        type_number = take_number(fmt::format("{}::{}#{}", record.name, field.name, types_.size()));
        const Record& inner = field.nested.front();
        types_[type_number] = fmt::format("{{\"{}\", {}, Kind::kRecord, {}, 0}}", inner.is_union ? "union" : "struct",
                                          inner.size, *nested);
        // An array of a struct defined in place.
        for (auto extent = field.type.extents.rbegin(); extent != field.type.extents.rend(); ++extent) {
          const std::uint32_t array = take_number(fmt::format("{}::{}#{}[]", record.name, field.name, types_.size()));
          types_[array] =
              fmt::format("{{\"array\", {}, Kind::kArray, {}, {}}}", inner.size * *extent, type_number, *extent);
          type_number = array;
        }
      } else {
        const auto type = this->type(field.type);
        if (!type) return Error{fmt::format("{}.{}: {}", record.name, field.name, type.error().text)};
        type_number = *type;
      }
      const unsigned bit = field.bits == 0 ? 0 : field.bit_offset - static_cast<unsigned>(field.offset * 8);
      rows.push_back(fmt::format("{{\"{}\", {}, {}, {}, {}}}", field.name, type_number, field.offset, field.bits, bit));
    }
    records_[number] = fmt::format("{{\"{}\", {}, {}, {}}}", record.name, record.is_union, fields_.size(), rows.size());
    fields_.insert(fields_.end(), rows.begin(), rows.end());
    return number;
  }

  const Api& api_;
  std::map<std::string, std::uint32_t> type_numbers_;
  std::map<std::string, std::uint32_t> enum_numbers_;
  std::map<std::string, std::uint32_t> record_numbers_;
  std::vector<std::string> types_;
  std::vector<std::string> enums_;
  std::vector<std::string> enumerators_;
  std::vector<std::string> records_;
  std::vector<std::string> fields_;
};

}  // namespace

Result<std::string> emit_name_tables(const Inputs& inputs, const Api& api, const std::vector<TracePlan>& plans,
                                     const std::string& accessor, std::uint64_t& schema) {
  NameTables tables(api);
  std::string functions;
  std::string parameters;
  std::string captures;
  std::size_t parameter_count = 0;
  std::size_t capture_count = 0;
  for (const TracePlan& plan : plans) {
    if (plan.function == nullptr) {
      functions +=
          fmt::format("    {{\"{}\", {}, {}, 0, 0, false, true, 0}},\n", plan.name, parameter_count, capture_count);
      continue;
    }
    const Function& function = *plan.function;
    const auto result = tables.type(function.result);
    if (!result) return Error{fmt::format("{}: {}", plan.name, result.error().text)};
    functions +=
        fmt::format("    {{\"{}\", {}, {}, {}, {}, true, {}, {}}},\n", plan.name, parameter_count, capture_count,
                    function.parameters.size(), plan.captures.size(), plan.result_in_value, *result);
    const auto meant_by = [&](const Parameter& parameter) {
      const std::string name = enumeration_of_parameter(function.base, parameter.name);
      return name.empty() ? nullptr : api.find_enum(name);
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
      const auto type = meant == nullptr ? tables.type(capture.type) : tables.integer_as(capture.type, *meant);
      if (!type) return Error{fmt::format("{}: {}", plan.name, type.error().text)};
      captures += fmt::format("    {{{}, {}, CaptureKind::{}, {}, {}}},\n", capture.parameter, capture.at_return,
                              capture.text ? "kText" : "kElements", capture.list, *type);
      ++capture_count;
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
