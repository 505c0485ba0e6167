// Collects the types of one translation unit: all types with the API's prefixes, and the types that these and the API's
// functions use.
#pragma once

#include <clang-c/Index.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/model.h"

namespace rota::codegen {

class TypeCollector {
 public:
  explicit TypeCollector(std::string include_directory) : include_directory_(std::move(include_directory)) {}

  // Records a declaration of a type. Call in source order, before anything is converted.
  void note(CXCursor cursor);
  // The spelling of a type. The types that it names become part of the API.
  TypeRef convert(CXType type, CXCursor at);
  std::vector<Parameter> convert_parameters(CXCursor function);
  // Adds every recorded type under the include folder whose name starts with one of `prefixes` to the API.
  void want_names(const std::vector<std::string_view>& prefixes);
  // Fills everything but functions. The first failure names file and line.
  std::optional<Error> finish(Api& api);

  // Relative to the include folder, or, for headers from elsewhere, to the last folder called "include".
  std::string header_of(CXCursor cursor) const;
  bool is_api_header(CXCursor cursor) const;

 private:
  struct Entry {
    CXCursor cursor;
    std::string name;
    bool wanted = false;
    Enum enumeration;
    Record record;
    Callback callback;
    Typedef alias;
    DeclarationKind kind = DeclarationKind::kTypedef;
  };

  void fail(CXCursor at, const std::string& text);
  void want(const std::string& name, CXCursor at);
  void fill(Entry& entry);
  Record convert_record(CXCursor cursor, const std::string& name);
  void convert_field(Record& record, CXCursor owner, CXCursor field);
  void convert_callback(Callback& callback, CXType function_type, CXCursor cursor);

  std::string include_directory_;
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::vector<std::size_t> to_fill_;
  std::optional<Error> failure_;
};

}  // namespace rota::codegen
