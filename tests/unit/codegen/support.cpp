#include "tests/unit/codegen/support.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "codegen/generate.h"

namespace rota::codegen::test {

namespace fs = std::filesystem;

Folder::Folder() {
  std::string pattern = (fs::temp_directory_path() / "rota-codegen-XXXXXX").string();
  if (!mkdtemp(pattern.data())) FAIL("no temporary folder");
  path_ = pattern;
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void Folder::write(const std::string& name, std::string_view content) const {
  const fs::path path = fs::path(path_) / name;
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

std::string Folder::read(const std::string& name) const {
  std::ostringstream text;
  text << std::ifstream(fs::path(path_) / name, std::ios::binary).rdbuf();
  return text.str();
}

Result<Api> extract_tiny(std::string_view header, bool typedefs_give_versions) {
  Folder folder;
  folder.write("tiny.h", header);
  ExtractOptions options;
  options.include_directory = folder.path();
  return extract_api(
      {.source = "#include <tiny.h>\n", .function_prefix = "cu", .typedefs_give_versions = typedefs_give_versions},
      options);
}

Model model_from(std::string_view header, const std::string& release) {
  auto api = extract_tiny(header);
  if (!api) FAIL(api.error().text);
  return {.release = release, .driver = std::move(*api), .runtime = {}, .library = {}};
}

Inputs inputs_from(std::string_view header, std::string_view policy) {
  auto facts = parse_policy(policy, "policy.toml");
  if (!facts) FAIL(facts.error().text);
  auto inputs = make_inputs({model_from(header)}, std::move(*facts));
  if (!inputs) FAIL(inputs.error().text);
  return std::move(*inputs);
}

}  // namespace rota::codegen::test
