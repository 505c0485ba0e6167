#include "codegen/type_collector.h"

#include <algorithm>

#include <fmt/format.h>

#include "codegen/clang_parse.h"

namespace rota::codegen {
namespace {

// libclang spells a type without a tag as "(unnamed struct at …)", or like the typedef that names it.
std::string declared_name(CXCursor cursor) {
  std::string name = to_string(clang_getCursorSpelling(cursor));
  return name.find_first_of("( ") == std::string::npos ? name : std::string();
}

CXType strip_sugar(CXType type) {
  for (;;) {
    if (type.kind == CXType_Elaborated) {
      type = clang_Type_getNamedType(type);
    } else if (type.kind == CXType_Attributed) {
      type = clang_Type_getModifiedType(type);
    } else {
      return type;
    }
  }
}

bool is_function(CXType type) {
  const CXType plain = strip_sugar(type);
  return plain.kind == CXType_FunctionProto || plain.kind == CXType_FunctionNoProto;
}

// Parentheses around a declarator are a separate node that libclang does not expose; the canonical type has none.
bool points_to_function(CXType type) {
  return type.kind == CXType_Pointer && is_function(clang_getCanonicalType(clang_getPointeeType(type)));
}

}  // namespace

void TypeCollector::fail(CXCursor at, const std::string& text) {
  if (!failure_) failure_ = Error{fmt::format("{}: {}", location_of(at), text)};
}

bool TypeCollector::is_api_header(CXCursor cursor) const {
  return file_of(cursor).starts_with(include_directory_ + "/");
}

std::string TypeCollector::header_of(CXCursor cursor) const {
  const std::string path = file_of(cursor);
  if (path.starts_with(include_directory_ + "/")) return path.substr(include_directory_.size() + 1);
  const std::size_t folder = path.rfind("/include/");
  return folder == std::string::npos ? path : path.substr(folder + 9);
}

void TypeCollector::note(CXCursor cursor) {
  const CXCursorKind kind = clang_getCursorKind(cursor);
  Entry entry{
      .cursor = cursor, .name = declared_name(cursor), .enumeration = {}, .record = {}, .callback = {}, .alias = {}};
  if (kind == CXCursor_EnumDecl) {
    entry.kind = DeclarationKind::kEnum;
  } else if (kind == CXCursor_StructDecl || kind == CXCursor_UnionDecl) {
    entry.kind = DeclarationKind::kRecord;
    const CXCursor definition = clang_getCursorDefinition(cursor);
    // A type is placed where it is defined, or, if it never is, where it is first mentioned.
    if (!clang_Cursor_isNull(definition) && !clang_equalCursors(definition, cursor)) return;
  } else if (kind == CXCursor_TypedefDecl) {
    const CXType underlying = clang_getTypedefDeclUnderlyingType(cursor);
    const CXCursor target = clang_getTypeDeclaration(strip_sugar(underlying));
    const CXCursorKind target_kind = clang_getCursorKind(target);
    if (target_kind == CXCursor_StructDecl || target_kind == CXCursor_UnionDecl || target_kind == CXCursor_EnumDecl) {
      // `typedef struct {…} X;` names the struct; `typedef struct X X;` says nothing new in C++.
      for (auto candidate = entries_.rbegin(); candidate != entries_.rend() && candidate->name.empty(); ++candidate) {
        if (!clang_equalCursors(candidate->cursor, target)) continue;
        candidate->name = entry.name;
        by_name_.emplace(candidate->name, static_cast<std::size_t>(entries_.rend() - candidate - 1));
      }
      if (by_name_.contains(entry.name) || declared_name(target) == entry.name) return;
    }
    entry.kind = is_function(underlying) || points_to_function(underlying) ? DeclarationKind::kCallback
                                                                           : DeclarationKind::kTypedef;
  } else {
    return;
  }
  if (!entry.name.empty() && !by_name_.emplace(entry.name, entries_.size()).second) return;
  entries_.push_back(std::move(entry));
}

void TypeCollector::want(const std::string& name, CXCursor at) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    fail(at, fmt::format("type '{}' has no declaration at file scope", name));
    return;
  }
  Entry& entry = entries_[found->second];
  if (entry.wanted) return;
  entry.wanted = true;
  to_fill_.push_back(found->second);
}

void TypeCollector::want_names(const std::vector<std::string_view>& prefixes) {
  for (const Entry& entry : entries_) {
    if (entry.name.empty() || entry.name.starts_with("PFN_") || !is_api_header(entry.cursor)) continue;
    if (std::ranges::any_of(prefixes, [&](std::string_view prefix) { return entry.name.starts_with(prefix); })) {
      want(entry.name, entry.cursor);
    }
  }
}

TypeRef TypeCollector::convert(CXType type, CXCursor at) {
  const bool is_const = clang_isConstQualifiedType(type) != 0;
  TypeRef result;
  switch (type.kind) {
    case CXType_Elaborated:
    case CXType_Attributed: {
      result = convert(strip_sugar(type), at);
      result.base_const = result.base_const || is_const;
      return result;
    }
    case CXType_Pointer: {
      const CXType pointee = clang_getPointeeType(type);
      if (is_function(clang_getCanonicalType(pointee)) && strip_sugar(pointee).kind != CXType_Typedef) {
        fail(at, "a function pointer without a typedef cannot be represented");
        return result;
      }
      result = convert(pointee, at);
      if (!result.extents.empty()) fail(at, "a pointer to an array cannot be represented");
      result.pointers.push_back(is_const);
      return result;
    }
    case CXType_ConstantArray: {
      result = convert(clang_getArrayElementType(type), at);
      result.extents.insert(result.extents.begin(), static_cast<std::uint64_t>(clang_getArraySize(type)));
      return result;
    }
    case CXType_IncompleteArray: {  // as a parameter, a pointer
      result = convert(clang_getArrayElementType(type), at);
      result.pointers.push_back(false);
      return result;
    }
    case CXType_Typedef:
      result.base = to_string(clang_getTypedefName(type));
      break;
    case CXType_Record:
    case CXType_Enum: {
      const CXCursor declaration = clang_getTypeDeclaration(type);
      result.base = declared_name(declaration);
      for (std::size_t i = entries_.size(); result.base.empty() && i-- > 0;) {
        if (clang_equalCursors(entries_[i].cursor, declaration)) result.base = entries_[i].name;
      }
      break;
    }
    default: {
      result.base = to_string(clang_getTypeSpelling(clang_getUnqualifiedType(type)));
      if (!is_builtin_type(result.base)) fail(at, fmt::format("type '{}' cannot be represented", result.base));
      result.base_const = is_const;
      return result;
    }
  }
  result.base_const = is_const;
  if (!is_builtin_type(result.base)) want(result.base, at);
  return result;
}

std::vector<Parameter> TypeCollector::convert_parameters(CXCursor function) {
  std::vector<Parameter> parameters;
  for_each_child(function, [&](CXCursor child) {
    if (clang_getCursorKind(child) != CXCursor_ParmDecl) return;
    Parameter parameter{.name = to_string(clang_getCursorSpelling(child)),
                        .type = convert(clang_getCursorType(child), child),
                        .direction = ""};
    if (parameter.name.empty()) parameter.name = fmt::format("arg{}", parameters.size());
    if (!parameter.type.extents.empty()) {  // `int size[2]` as a parameter is a pointer to its element
      parameter.type.extents.erase(parameter.type.extents.begin());
      if (!parameter.type.extents.empty()) fail(child, "a parameter of two array dimensions cannot be represented");
      parameter.type.pointers.push_back(false);
    }
    parameters.push_back(std::move(parameter));
  });
  return parameters;
}

void TypeCollector::convert_callback(Callback& callback, CXType function_type, CXCursor cursor) {
  callback.result = convert(clang_getResultType(function_type), cursor);
  callback.parameters = convert_parameters(cursor);
  if (clang_isFunctionTypeVariadic(function_type)) fail(cursor, "a variadic callback cannot be represented");
}

void TypeCollector::convert_field(Record& record, CXCursor owner, CXCursor cursor) {
  Field field;
  field.name = declared_name(cursor);
  const long long bit_offset = clang_Cursor_getOffsetOfField(cursor);
  if (bit_offset < 0) {
    fail(cursor, "a field without a fixed offset");
    return;
  }
  field.offset = static_cast<std::uint64_t>(bit_offset) / 8;
  CXType type = clang_getCursorType(cursor);
  std::vector<std::uint64_t> extents;
  while (strip_sugar(type).kind == CXType_ConstantArray) {
    extents.push_back(static_cast<std::uint64_t>(clang_getArraySize(strip_sugar(type))));
    type = clang_getArrayElementType(strip_sugar(type));
  }
  const CXCursor declaration = clang_getTypeDeclaration(strip_sugar(type));
  const CXCursorKind kind = clang_getCursorKind(declaration);
  const bool is_record = kind == CXCursor_StructDecl || kind == CXCursor_UnionDecl;
  if (is_record && clang_equalCursors(clang_getCursorSemanticParent(declaration), owner)) {
    field.nested.push_back(convert_record(declaration, declared_name(declaration)));
    field.type.extents = extents;
    if (!field.nested.front().name.empty() && std::ranges::any_of(record.fields, [&](const Field& other) {
          return !other.nested.empty() && other.nested.front().name == field.nested.front().name;
        })) {
      fail(cursor, "two fields of one nested type cannot be represented");
    }
  } else {
    field.type = convert(clang_getCursorType(cursor), cursor);
  }
  if (clang_Cursor_isBitField(cursor)) {
    field.bits = static_cast<unsigned>(clang_getFieldDeclBitWidth(cursor));
    field.bit_offset = static_cast<unsigned>(bit_offset);
  }
  record.fields.push_back(std::move(field));
}

Record TypeCollector::convert_record(CXCursor cursor, const std::string& name) {
  Record record;
  record.name = name;
  record.is_union = clang_getCursorKind(cursor) == CXCursor_UnionDecl;
  const CXCursor definition = clang_getCursorDefinition(cursor);
  record.complete = !clang_Cursor_isNull(definition);
  if (!record.complete) return record;
  const CXType type = clang_getCursorType(definition);
  record.size = static_cast<std::uint64_t>(clang_Type_getSizeOf(type));
  record.align = static_cast<std::uint64_t>(clang_Type_getAlignOf(type));
  struct Visit {
    TypeCollector* collector;
    Record* record;
    CXCursor owner;
  } visit{this, &record, definition};
  clang_Type_visitFields(
      type,
      [](CXCursor field, CXClientData data) {
        auto* visit = static_cast<Visit*>(data);
        visit->collector->convert_field(*visit->record, visit->owner, field);
        return CXVisit_Continue;
      },
      &visit);
  return record;
}

void TypeCollector::fill(Entry& entry) {
  const std::string header = header_of(entry.cursor);
  switch (entry.kind) {
    case DeclarationKind::kEnum: {
      Enum& enumeration = entry.enumeration;
      enumeration.name = entry.name;
      enumeration.header = header;
      enumeration.underlying =
          to_string(clang_getTypeSpelling(clang_getCanonicalType(clang_getEnumDeclIntegerType(entry.cursor))));
      if (enumeration.underlying != "int" && enumeration.underlying != "unsigned int") {
        fail(entry.cursor, fmt::format("enum '{}' is not as wide as an int", entry.name));
      }
      for_each_child(entry.cursor, [&](CXCursor child) {
        if (clang_getCursorKind(child) != CXCursor_EnumConstantDecl) return;
        enumeration.enumerators.push_back(
            {.name = to_string(clang_getCursorSpelling(child)), .value = clang_getEnumConstantDeclValue(child)});
      });
      break;
    }
    case DeclarationKind::kRecord: {
      Record record = convert_record(entry.cursor, entry.name);
      record.header = header;
      entry.record = std::move(record);
      break;
    }
    case DeclarationKind::kCallback: {
      Callback callback{.name = entry.name, .header = header, .result = {}, .parameters = {}};
      const CXType underlying = clang_getTypedefDeclUnderlyingType(entry.cursor);
      callback.pointer = points_to_function(underlying);
      const CXType function = clang_getCanonicalType(callback.pointer ? clang_getPointeeType(underlying) : underlying);
      // The typedef's own nodes keep the result type as spelled; the canonical type has lost the names.
      CXType spelled = callback.pointer ? clang_getPointeeType(underlying) : underlying;
      spelled = strip_sugar(spelled);
      convert_callback(callback, clang_getResultType(spelled).kind == CXType_Invalid ? function : spelled,
                       entry.cursor);
      entry.callback = std::move(callback);
      break;
    }
    case DeclarationKind::kTypedef:
      entry.alias = {.name = entry.name,
                     .header = header,
                     .type = convert(clang_getTypedefDeclUnderlyingType(entry.cursor), entry.cursor)};
      break;
  }
}

std::optional<Error> TypeCollector::finish(Api& api) {
  while (!to_fill_.empty()) {
    const std::size_t next = to_fill_.back();
    to_fill_.pop_back();
    fill(entries_[next]);
  }
  for (Entry& entry : entries_) {
    if (!entry.wanted) continue;
    Declaration declaration{.kind = entry.kind, .index = 0};
    switch (entry.kind) {
      case DeclarationKind::kEnum:
        declaration.index = api.enums.size();
        api.enums.push_back(std::move(entry.enumeration));
        break;
      case DeclarationKind::kRecord:
        declaration.index = api.records.size();
        api.records.push_back(std::move(entry.record));
        break;
      case DeclarationKind::kCallback:
        declaration.index = api.callbacks.size();
        api.callbacks.push_back(std::move(entry.callback));
        break;
      case DeclarationKind::kTypedef:
        declaration.index = api.typedefs.size();
        api.typedefs.push_back(std::move(entry.alias));
        break;
    }
    api.declarations.push_back(declaration);
  }
  return failure_;
}

}  // namespace rota::codegen
