// libclang behind a few value types: one parsed translation unit, and walks over it.
#pragma once

#include <clang-c/Index.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/base/result.h"

namespace rota::codegen {

// A translation unit without errors.
class ParsedUnit {
 public:
  // `source` is a virtual file of `#include` lines. Fails on any diagnostic of severity Error or worse.
  static Result<ParsedUnit> parse(const std::string& source, const std::vector<std::string>& arguments);

  CXCursor root() const;
  // The paths of all headers read, as the compiler found them.
  std::vector<std::string> included_files() const;

 private:
  struct Handles;
  explicit ParsedUnit(std::shared_ptr<Handles> handles) : handles_(std::move(handles)) {}
  std::shared_ptr<Handles> handles_;
};

// Converts libclang's string and frees it.
std::string to_string(CXString text);
// Calls `visit` for every direct child, in source order.
void for_each_child(CXCursor parent, const std::function<void(CXCursor)>& visit);
// "/path/cuda.h:123", and the path alone.
std::string location_of(CXCursor cursor);
std::string file_of(CXCursor cursor);

}  // namespace rota::codegen
