// rota-codegen: extract | generate | check | diff. See DESIGN.md, "Folders".
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "codegen/extract.h"
#include "codegen/model.h"

namespace {

using namespace rota::codegen;

int fail(const Error& error) {
  std::cerr << "rota-codegen: " << error.text << '\n';
  return 1;
}

int write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (!file) return fail({fmt::format("{}: cannot be written", path)});
  return 0;
}

struct ExtractCommand {
  ExtractOptions options;
  std::string release;
  std::string output;

  int run() const {
    const auto model = extract_model(options, release);
    if (!model) return fail(model.error());
    if (const int code = write_file(output, model_to_json(*model))) return code;
    std::cout << fmt::format("{}: CUDA {}, {} driver functions, {} runtime functions, {} and {} types\n", output,
                             model->release, model->driver.functions.size(), model->runtime.functions.size(),
                             model->driver.declarations.size(), model->runtime.declarations.size());
    return 0;
  }
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"CUDA headers -> API model -> generated/", "rota-codegen"};
  app.require_subcommand(1);

  ExtractCommand extract;
  CLI::App* extract_app = app.add_subcommand("extract", "read one release's headers into a model");
  extract_app->add_option("--include", extract.options.include_directory, "folder that holds cuda.h")->required();
  extract_app->add_option("--release", extract.release, "what cuda.h must say it is, for example 13.0");
  extract_app->add_option("--resource-dir", extract.options.resource_directory,
                          "clang's resource directory (default: looked for)");
  extract_app->add_option("-o,--output", extract.output, "the model to write")->required();

  CLI11_PARSE(app, argc, argv);
  if (*extract_app) return extract.run();
  return 0;
}
