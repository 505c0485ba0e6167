// rota-codegen: extract | generate | check | diff | report.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "codegen/check.h"
#include "codegen/diff.h"
#include "codegen/exports.h"
#include "codegen/extract.h"
#include "codegen/generate.h"
#include "codegen/model.h"
#include "codegen/report.h"

namespace {

using rota::Error;
using rota::Result;
using namespace rota::codegen;

int fail(const Error& error) {
  std::cerr << "rota-codegen: " << error.text << '\n';
  return 1;
}

// The path where toolkits and cuda_headers/fetch put libcudart; empty if it is not there.
std::string cudart_beside(const std::string& include_directory) {
  namespace fs = std::filesystem;
  const fs::path include = fs::path(
      include_directory.ends_with('/') ? include_directory.substr(0, include_directory.size() - 1) : include_directory);
  for (const char* folder : {"lib", "lib64"}) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(include.parent_path() / folder, error)) {
      if (entry.path().filename().string().starts_with("libcudart.so")) return entry.path().string();
    }
  }
  return "";
}

struct ExtractCommand {
  ExtractOptions options;
  std::string release;
  std::string cudart;
  std::string output;
  bool accept_loss = false;

  int run() {
    namespace fs = std::filesystem;
    auto model = extract_model(options, release);
    if (!model) return fail(model.error());
    const fs::path path(output);
    if (path.filename() != model->release + ".json") {
      return fail({fmt::format("{}: the headers belong to CUDA {}, whose model is called {}.json", output,
                               model->release, model->release)});
    }
    if (cudart.empty()) cudart = cudart_beside(options.include_directory);
    if (cudart.empty()) {
      return fail({fmt::format("no libcudart.so next to {}: name the one of CUDA {} with --cudart",
                               options.include_directory, model->release)});
    }
    auto library = read_runtime_library(cudart, model->runtime);
    if (!library) return fail(library.error());
    model->library = std::move(*library);
    const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
    if (const auto lost = losses(folder, *model); !lost.empty() && !accept_loss) {
      return fail(
          {fmt::format("{}: these headers no longer declare {} thing{} that the models there have: {}. A header "
                       "that is cut off or hides them behind a macro? If it is right, say --accept-loss",
                       output, lost.size(), lost.size() == 1 ? "" : "s", fmt::join(lost, ", "))});
    }
    const auto written = save_model(folder, *model);
    if (!written) return fail(written.error());
    std::cout << fmt::format("{}: CUDA {}, {} driver functions, {} runtime functions, {} and {} types\n", output,
                             model->release, model->driver.functions.size(), model->runtime.functions.size(),
                             model->driver.declarations.size(), model->runtime.declarations.size());
    for (std::size_t i = 1; i < written->size(); ++i) std::cout << fmt::format("{}: rewritten\n", (*written)[i]);
    return 0;
  }

 private:
  // Compares with the same release's earlier model and with the release before it.
  static std::vector<std::string> losses(const std::string& folder, const Model& model) {
    const auto models = load_models(folder);
    std::vector<std::string> lost;
    const Model* before = nullptr;
    for (std::size_t i = 0; models && i < models->size(); ++i) {
      const int order = release_number((*models)[i].release) - release_number(model.release);
      if (order < 0) before = &(*models)[i];
      if (order == 0) lost = lost_declarations((*models)[i], model);
    }
    if (before) {
      for (const std::string& name : lost_declarations(*before, model)) {
        if (std::ranges::find(lost, name) == lost.end()) lost.push_back(name);
      }
    }
    return lost;
  }
};

// The repository that the command runs in: the nearest parent folder with cuda_headers/policy.toml.
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
    if (output.empty()) {
      const auto documents = write_files(emit_documents(*inputs), *repository);
      if (!documents) return fail(documents.error());
    }
    for (const std::string& name : *written) std::cout << "wrote " << directory << '/' << name << '\n';
    std::cout << fmt::format("{} files, {} of them new or changed; {} symbols\n", files->size(), written->size(),
                             inputs->symbols.size());
    return 0;
  }
};

struct CheckCommand {
  std::string root;
  std::vector<std::string> exports;
  std::vector<std::string> calls;
  ReleaseSources sources;
  bool unreviewed = false;

  int run() const {
    const auto repository = find_root(root);
    if (!repository) return fail(repository.error());
    const auto inputs = load_inputs(*repository);
    if (!inputs) return fail(inputs.error());
    Problems problems;
    const auto add = [&problems](Problems more) { problems.insert(problems.end(), more.begin(), more.end()); };
    add(check_reviewed(*inputs));
    add(check_documentation(*inputs));
    const std::size_t decisions = problems.size();
    add(check_policy(*inputs));
    add(check_overrides(*inputs));
    add(check_binding(*inputs));
    // A policy that contradicts the model may also stop the emitters; the problems reported above explain why.
    if (const auto files = emit_all(*inputs)) {
      add(check_generated(*files, *repository + "/generated"));
      for (const std::string& name : stale_files(emit_documents(*inputs), *repository))
        problems.push_back(fmt::format("{} is out of date: run `rota-codegen generate`", name));
    } else {
      problems.push_back(files.error().text);
    }
    const auto with_names = [&](const std::vector<std::string>& paths, auto&& check) {
      for (const std::string& path : paths) {
        const auto names = read_exports(path);
        add(names ? check(*inputs, *names, path) : Problems{names.error().text});
      }
    };
    with_names(exports, check_exports);
    with_names(calls, check_calls);
    if (!sources.headers.include_directory.empty()) add(check_release(*inputs, sources));
    for (const std::string& problem : problems) std::cerr << "rota-codegen: " << problem << '\n';
    const PointerReview review = review_pointers(*inputs);
    if (unreviewed) {
      for (const std::string& parameter : review.unreviewed) std::cout << parameter << '\n';
    }
    std::cout << fmt::format(
        "CUDA {} to {}: {} driver symbols, {} functions in the policy, {} pointer parameters reviewed, {} unreviewed; "
        "{} "
        "problem{}\n",
        inputs->releases.front().release, inputs->newest().release, inputs->symbols.size(),
        inputs->policy.functions.size(), review.stated, review.unreviewed.size(), problems.size(),
        problems.size() == 1 ? "" : "s");
    if (problems.empty()) return 0;
    return problems.size() == decisions ? kOnlyDecisionsMissing : 1;
  }

 private:
  // The exit code when nothing is wrong except that somebody must decide what new functions do.
  static constexpr int kOnlyDecisionsMissing = 2;
};

// `name`: "12.9", or the path of its model.
Result<const Model*> find_release(const std::vector<Model>& models, const std::string& name) {
  const std::filesystem::path path(name);
  const std::string release = path.extension() == ".json" ? path.stem().string() : name;
  const auto found = std::ranges::find(models, release, &Model::release);
  if (found != models.end()) return &*found;
  std::vector<std::string> known;
  for (const Model& model : models) known.push_back(model.release);
  return Error{fmt::format("no model of CUDA {} (there are {})", release, fmt::join(known, ", "))};
}

struct DiffCommand {
  std::string root;
  std::string before;
  std::string after;

  int run() const {
    const auto repository = find_root(root);
    if (!repository) return fail(repository.error());
    const auto models = load_models(*repository + "/cuda_headers/api");
    if (!models) return fail(models.error());
    const auto old_model = find_release(*models, before);
    if (!old_model) return fail(old_model.error());
    const auto new_model = find_release(*models, after);
    if (!new_model) return fail(new_model.error());
    const auto lines = diff_models(**old_model, **new_model);
    for (const std::string& line : lines) std::cout << line << '\n';
    std::cout << fmt::format("CUDA {} -> {}: {} differences\n", before, after, lines.size());
    return 0;
  }
};

struct ReportCommand {
  std::string root;
  std::string before;
  std::string after;

  int run() const {
    const auto repository = find_root(root);
    if (!repository) return fail(repository.error());
    const auto inputs = load_inputs(*repository);
    if (!inputs) return fail(inputs.error());
    const auto old_model = find_release(inputs->releases, before);
    if (!old_model) return fail(old_model.error());
    const auto new_model = find_release(inputs->releases, after);
    if (!new_model) return fail(new_model.error());
    std::cout << release_report(*inputs, **old_model, **new_model);
    return 0;
  }
};

int run(int argc, char** argv) {
  CLI::App app{"CUDA headers -> API model -> generated/", "rota-codegen"};
  app.require_subcommand(1);

  ExtractCommand extract;
  CLI::App* extract_app = app.add_subcommand("extract", "read one release's headers into a model");
  extract_app->add_option("--include", extract.options.include_directory, "folder that holds cuda.h")->required();
  extract_app->add_option("--release", extract.release, "the release that cuda.h must state, for example 13.0");
  extract_app->add_option("--resource-dir", extract.options.resource_directory,
                          "clang's resource directory (default: looked for)");
  extract_app->add_option("--cudart", extract.cudart, "its libcudart.so (default: looked for next to the headers)");
  extract_app->add_flag("--accept-loss", extract.accept_loss,
                        "the headers may lack functions that earlier models have");
  extract_app->add_option("-o,--output", extract.output, "the model to write, RELEASE.json in the folder of all models")
      ->required();

  GenerateCommand generate;
  CLI::App* generate_app = app.add_subcommand("generate", "write generated/ from the models and policy.toml");
  generate_app->add_option("--root", generate.root, "the repository (default: the one this is run in)");
  generate_app->add_option("-o,--output", generate.output, "folder to write into (default: generated/)");

  CheckCommand check;
  CLI::App* check_app = app.add_subcommand("check", "check that everything is reviewed, consistent and up to date");
  check_app->add_option("--root", check.root, "the repository (default: the one this is run in)");
  check_app->add_option("--exports", check.exports,
                        "a libcuda.so, or a list of its exports: every symbol needs a thunk");
  check_app->add_option("--calls", check.calls,
                        "a list of functions that appear in traces: their parameters must be reviewed");
  check_app->add_option("--include", check.sources.headers.include_directory,
                        "CUDA headers of any covered release, to compare with its model");
  check_app->add_option("--release", check.sources.release, "with --include: the release that cuda.h must state");
  check_app->add_option("--cudart", check.sources.cudart, "with --include: that release's libcudart.so");
  check_app->add_option("--cupti", check.sources.cupti, "with --include: the folder of CUPTI's headers");
  check_app->add_option("--resource-dir", check.sources.headers.resource_directory,
                        "clang's resource directory (default: looked for)");
  check_app->add_flag("--unreviewed", check.unreviewed, "list the pointer parameters that nobody has reviewed");

  DiffCommand diff;
  CLI::App* diff_app = app.add_subcommand("diff", "show what changed between two releases");
  diff_app->add_option("--root", diff.root, "the repository (default: the one this is run in)");
  diff_app->add_option("before", diff.before, "a covered release, such as 12.9")->required();
  diff_app->add_option("after", diff.after, "another one")->required();

  ReportCommand report;
  CLI::App* report_app =
      app.add_subcommand("report", "report in Markdown what a release added and what must be decided");
  report_app->add_option("--root", report.root, "the repository (default: the one this is run in)");
  report_app->add_option("before", report.before, "the release before")->required();
  report_app->add_option("after", report.after, "the new release")->required();

  CLI11_PARSE(app, argc, argv);
  if (*extract_app) return extract.run();
  if (*generate_app) return generate.run();
  if (*check_app) return check.run();
  if (*report_app) return report.run();
  return diff.run();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& problem) {  // out of memory, or the working directory no longer exists
    std::fprintf(stderr, "rota-codegen: %s\n", problem.what());
    return 1;
  }
}
