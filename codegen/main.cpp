// rota-codegen: extract | generate | check | diff.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "codegen/check.h"
#include "codegen/diff.h"
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

struct CheckCommand {
  std::string root;
  std::vector<std::string> exports;
  std::string include_directory;
  std::string resource_directory;

  int run() const {
    const auto repository = find_root(root);
    if (!repository) return fail(repository.error());
    const auto inputs = load_inputs(*repository);
    if (!inputs) return fail(inputs.error());
    Problems problems;
    const auto add = [&problems](Problems more) { problems.insert(problems.end(), more.begin(), more.end()); };
    add(check_policy(*inputs));
    add(check_reviewed(*inputs));
    add(check_documentation(*inputs));
    // A policy that contradicts the model may also stop the emitters; what is above says more about why.
    if (const auto files = emit_all(*inputs)) {
      add(check_generated(*files, *repository + "/generated"));
    } else {
      problems.push_back(files.error().text);
    }
    for (const std::string& path : exports) {
      const auto names = read_exports(path);
      if (names) {
        add(check_exports(*inputs, *names, path));
      } else {
        problems.push_back(names.error().text);
      }
    }
    if (!include_directory.empty()) add(check_headers(*inputs));
    for (const std::string& problem : problems) std::cerr << "rota-codegen: " << problem << '\n';
    const PointerCount pointers = count_pointers(*inputs);
    std::cout << fmt::format(
        "CUDA {}: {} symbols, {} functions in the policy, {} pointer parameters stated there, {} left to the derived "
        "guess; "
        "{} problem{}\n",
        inputs->model.release, inputs->symbols.size(), inputs->policy.functions.size(), pointers.stated,
        pointers.derived, problems.size(), problems.size() == 1 ? "" : "s");
    return problems.empty() ? 0 : 1;
  }

 private:
  // The headers once more: no diagnostic, and the very model that is committed.
  Problems check_headers(const Inputs& inputs) const {
    ExtractOptions options;
    options.include_directory = include_directory;
    options.resource_directory = resource_directory;
    const auto model = extract_model(options, inputs.model.release);
    if (!model) return {model.error().text};
    if (model_to_json(*model) == model_to_json(inputs.model)) return {};
    Problems problems{
        fmt::format("cuda_headers/api/{0}.json is not what {1} declares: run `rota-codegen extract --include {1} "
                    "-o cuda_headers/api/{0}.json`",
                    inputs.model.release, include_directory)};
    for (const std::string& line : diff_models(inputs.model, *model)) problems.push_back(line);
    return problems;
  }
};

struct DiffCommand {
  std::string before;
  std::string after;

  int run() const {
    const auto old_model = load_model(before);
    if (!old_model) return fail(old_model.error());
    const auto new_model = load_model(after);
    if (!new_model) return fail(new_model.error());
    const auto lines = diff_models(*old_model, *new_model);
    for (const std::string& line : lines) std::cout << line << '\n';
    std::cout << fmt::format("CUDA {} -> {}: {} differences\n", old_model->release, new_model->release, lines.size());
    return 0;
  }
};

int run(int argc, char** argv) {
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

  CheckCommand check;
  CLI::App* check_app = app.add_subcommand("check", "is everything reviewed, consistent and up to date?");
  check_app->add_option("--root", check.root, "the repository (default: the one this is run in)");
  check_app->add_option("--exports", check.exports,
                        "a libcuda.so, or a list of its exports: every symbol needs a thunk");
  check_app->add_option("--include", check.include_directory,
                        "CUDA headers: is the committed model what they declare?");
  check_app->add_option("--resource-dir", check.resource_directory, "clang's resource directory (default: looked for)");

  DiffCommand diff;
  CLI::App* diff_app = app.add_subcommand("diff", "what changed between two models");
  diff_app->add_option("before", diff.before, "a model, cuda_headers/api/….json")->required();
  diff_app->add_option("after", diff.after, "another one")->required();

  CLI11_PARSE(app, argc, argv);
  if (*extract_app) return extract.run();
  if (*generate_app) return generate.run();
  if (*check_app) return check.run();
  return diff.run();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& problem) {  // no memory, a working directory that is gone
    std::fprintf(stderr, "rota-codegen: %s\n", problem.what());
    return 1;
  }
}
