// rota-codegen: extract | generate | check | diff. See DESIGN.md, "Folders".
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "codegen/extract.h"
#include "codegen/generate.h"
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

// The repository that the command is run in: the nearest folder upwards with cuda_headers/policy.toml.
Result<std::string> find_root(const std::string& given) {
  namespace fs = std::filesystem;
  if (!given.empty()) return given;
  for (fs::path at = fs::current_path();; at = at.parent_path()) {
    if (fs::exists(at / "cuda_headers" / "policy.toml")) return at.string();
    if (at == at.parent_path()) break;
  }
  return Error{"no cuda_headers/policy.toml here or above: run this in the repository or give --root"};
}

struct GenerateCommand {
  std::string root;
  std::string output;

  int run() const {
    const auto repository = find_root(root);
    if (!repository) return fail(repository.error());
    const auto inputs = load_inputs(*repository);
    if (!inputs) return fail(inputs.error());
    const auto files = emit_all(*inputs);
    if (!files) return fail(files.error());
    const std::string directory = output.empty() ? *repository + "/generated" : output;
    const auto written = write_files(*files, directory);
    if (!written) return fail(written.error());
    for (const std::string& name : *written) std::cout << "wrote " << directory << '/' << name << '\n';
    std::cout << fmt::format("{} files, {} of them new or changed; {} symbols\n", files->size(), written->size(),
                             inputs->symbols.size());
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

  GenerateCommand generate;
  CLI::App* generate_app = app.add_subcommand("generate", "write generated/ from the models and policy.toml");
  generate_app->add_option("--root", generate.root, "the repository (default: the one this is run in)");
  generate_app->add_option("-o,--output", generate.output, "folder to write into (default: generated/)");

  CLI11_PARSE(app, argc, argv);
  if (*extract_app) return extract.run();
  if (*generate_app) return generate.run();
  return 0;
}
