// A folder of small headers to extract from, and small models to emit from.
#pragma once

#include <string>
#include <string_view>

#include "codegen/emit.h"
#include "codegen/extract.h"

namespace rota::codegen::test {

// A new folder under the temporary directory, removed with the object.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  // Writes path()/name, with the folders that it needs.
  void write(const std::string& name, std::string_view content) const;
  std::string read(const std::string& name) const;

 private:
  std::string path_;
};

// Extracts from one header, tiny.h, whose functions begin with "cu"; PFN_ typedefs only if asked for.
Result<Api> extract_tiny(std::string_view header, bool typedefs_give_versions = false);

// A model of which only the driver's part is filled; fails the test if the header is wrong.
Model model_from(std::string_view header, const std::string& release = "13.0");

// Inputs made of tiny.h and a policy; fails the test if either is wrong.
Inputs inputs_from(std::string_view header, std::string_view policy);

}  // namespace rota::codegen::test
