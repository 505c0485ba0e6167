#include "codegen/generate.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "codegen/files.h"
#include "codegen/report.h"
#include "codegen/unite.h"

namespace rota::codegen {
namespace {

namespace fs = std::filesystem;

// The names in runtime/overrides.inc, each with the comment "// runtime/hooks/….cpp" above it; none if the file does
// not exist.
void read_overrides(const std::string& root, Inputs& inputs) {
  std::istringstream lines(read_file(root + "/runtime/overrides.inc").value_or(""));
  constexpr std::string_view kEntry = "ROTA_OVERRIDE(";
  constexpr std::string_view kFile = "// runtime/";
  std::string file;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kFile) && line.ends_with(".cpp")) {
      file = line.substr(std::string_view("// ").size());
      inputs.override_sources[file] = read_file(root + "/" + file).value_or("");
    }
    if (!line.starts_with(kEntry)) continue;
    inputs.overrides.push_back(line.substr(kEntry.size(), line.find(')') - kEntry.size()));
    if (!file.empty()) inputs.override_files[inputs.overrides.back()] = file;
  }
}

Result<RuntimeMajor> make_runtime(int major, const std::vector<const Model*>& releases) {
  RuntimeMajor runtime{.major = major, .library = releases.back()->library.name, .api = {}, .symbols = {}};
  std::vector<ReleasedApi> apis;
  std::set<std::string> symbols;
  for (const Model* model : releases) {
    if (model->library.name != runtime.library) {
      return Error{fmt::format("CUDA {} has {}, but {} has {}: one major release has only one libcudart",
                               model->release, model->library.name, releases.back()->release, runtime.library)};
    }
    apis.push_back({model->release, &model->runtime});
    const auto& unexported = model->library.unexported;
    for (const Function& function : model->runtime.functions) {
      if (!std::ranges::binary_search(unexported, function.name)) symbols.insert(function.name);
    }
    symbols.insert(model->library.undeclared.begin(), model->library.undeclared.end());
  }
  auto api = unite(apis);
  if (!api) return api.error();
  runtime.api = std::move(*api);
  runtime.symbols.assign(symbols.begin(), symbols.end());
  return runtime;
}

}  // namespace

Result<Inputs> make_inputs(std::vector<Model> releases, Policy policy) {
  Inputs inputs;
  inputs.releases = std::move(releases);
  inputs.policy = std::move(policy);
  std::vector<ReleasedApi> drivers;
  std::map<int, std::vector<const Model*>> majors;
  for (const Model& model : inputs.releases) {
    drivers.push_back({model.release, &model.driver});
    if (!model.runtime.functions.empty()) majors[release_number(model.release) / 1000].push_back(&model);
  }
  auto driver = unite(drivers);
  if (!driver) return driver.error();
  inputs.driver = std::move(*driver);
  for (const auto& [major, models] : majors) {
    auto runtime = make_runtime(major, models);
    if (!runtime) return runtime.error();
    inputs.runtimes.push_back(std::move(*runtime));
  }
  for (const Function& function : inputs.driver.functions) inputs.symbols.push_back(function.name);
  for (const auto& [name, function] : inputs.policy.functions) {
    if (!function.undeclared) continue;
    if (inputs.driver.find_function(name)) {
      return Error{
          fmt::format("policy.toml:{}: {} is marked undeclared, but the headers declare it", function.line, name)};
    }
    inputs.symbols.push_back(name);
  }
  std::ranges::sort(inputs.symbols);
  return inputs;
}

Result<Inputs> load_inputs(const std::string& root) {
  auto models = load_models(root + "/cuda_headers/api");
  if (!models) return models.error();
  auto policy = load_policy(root + "/cuda_headers/policy.toml");
  if (!policy) return policy.error();
  auto inputs = make_inputs(std::move(*models), std::move(*policy));
  if (inputs) read_overrides(root, *inputs);
  return inputs;
}

Result<std::vector<EmittedFile>> emit_all(const Inputs& inputs) {
  auto files = emit_driver(inputs);
  if (!files) return files;
  auto trace = emit_trace(inputs);
  if (!trace) return trace;
  files->insert(files->end(), trace->begin(), trace->end());
  files->push_back(emit_allocation_list(inputs));
  auto addresses = emit_address_list(inputs);
  if (!addresses) return addresses.error();
  files->push_back(*addresses);
  auto handles = emit_physical_handle_list(inputs);
  if (!handles) return handles.error();
  files->push_back(*handles);
  std::ranges::sort(*files, {}, &EmittedFile::name);
  return files;
}

std::vector<EmittedFile> emit_documents(const Inputs& inputs) {
  return {emit_coverage(inputs), emit_allocation_table(inputs)};
}

Result<std::vector<std::string>> write_files(const std::vector<EmittedFile>& files, const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  std::vector<std::string> written;
  for (const std::string& name : stale_files(files, directory)) {
    const auto file = std::ranges::find(files, name, &EmittedFile::name);
    const fs::path path = fs::path(directory) / name;
    const fs::path fresh = path.string() + ".new";
    std::ofstream out(fresh, std::ios::binary | std::ios::trunc);
    out << file->content;
    out.close();
    if (!out) return Error{fmt::format("{}: cannot be written", fresh.string())};
    fs::rename(fresh, path, error);
    if (error) return Error{fmt::format("{}: {}", path.string(), error.message())};
    written.push_back(name);
  }
  return written;
}

std::vector<std::string> stale_files(const std::vector<EmittedFile>& files, const std::string& directory) {
  std::vector<std::string> stale;
  for (const EmittedFile& file : files) {
    if (read_file((fs::path(directory) / file.name).string()) != file.content) stale.push_back(file.name);
  }
  return stale;
}

}  // namespace rota::codegen
