// Compares a release's sources with its model: its headers again, the exports of its libcudart, and CUPTI, which
// numbers every function of both APIs and so is an independent list.
#include <algorithm>
#include <regex>
#include <set>

#include <fmt/format.h>

#include "codegen/check.h"
#include "codegen/diff.h"
#include "codegen/exports.h"
#include "codegen/files.h"

namespace rota::codegen {
namespace {

Result<std::set<std::string>> numbered_names(const std::string& path, const std::string& prefix, bool strip_version) {
  const auto content = read_file(path);
  if (!content) return Error{fmt::format("{}: cannot be opened", path)};
  const std::string& text = *content;
  const std::regex entry(prefix + R"((\w+)\s*=\s*\d+)");
  // The runtime's entries carry the CUDA version in which they appeared: cudaMalloc_v3020, cudaMemcpy_ptds_v7000.
  const std::regex version("_v\\d{4,5}$");
  std::set<std::string> names;
  for (std::sregex_iterator at(text.begin(), text.end(), entry), end; at != end; ++at) {
    const std::string name = (*at)[1];
    if (name == "INVALID" || name == "SIZE" || name == "FORCE_INT") continue;
    names.insert(strip_version ? std::regex_replace(name, version, "") : name);
  }
  if (names.empty()) return Error{fmt::format("{}: numbers no function", path)};
  return names;
}

void compare_cupti(const Model& model, const std::string& folder, Problems& problems) {
  const auto drivers = numbered_names(folder + "/cupti_driver_cbid.h", "CUPTI_DRIVER_TRACE_CBID_", false);
  const auto runtimes = numbered_names(folder + "/cupti_runtime_cbid.h", "CUPTI_RUNTIME_TRACE_CBID_", true);
  for (const auto* names : {&drivers, &runtimes}) {
    if (!*names) problems.push_back(names->error().text);
  }
  if (!drivers || !runtimes) return;
  for (const Function& function : model.driver.functions) {
    // Interop with EGL is not CUPTI's.
    if (function.header == "cudaEGL.h" || drivers->contains(function.name)) continue;
    problems.push_back(fmt::format("CUDA {}: CUPTI does not know {}", model.release, function.name));
  }
  for (const Function& function : model.runtime.functions) {
    if (runtimes->contains(function.name) || std::ranges::binary_search(model.library.unexported, function.name))
      continue;
    problems.push_back(fmt::format("CUDA {}: CUPTI does not know {}", model.release, function.name));
  }
}

}  // namespace

Problems check_release(const Inputs& inputs, const ReleaseSources& sources) {
  auto model = extract_model(sources.headers, sources.release);
  if (!model) return {model.error().text};
  const auto kept = std::ranges::find(inputs.releases, model->release, &Model::release);
  if (kept == inputs.releases.end()) {
    return {fmt::format("{} is CUDA {}, of which cuda_headers/api has no model: make one with `rota-codegen extract`",
                        sources.headers.include_directory, model->release)};
  }
  model->library = kept->library;
  Problems problems;
  if (!sources.cudart.empty()) {
    auto library = read_runtime_library(sources.cudart, model->runtime);
    if (!library) return {library.error().text};
    model->library = std::move(*library);
  }
  if (model_to_json(*model) != model_to_json(*kept)) {
    problems.push_back(
        fmt::format("cuda_headers/api/{0}.json is not what {1} declares: run `rota-codegen extract --include "
                    "{1} -o cuda_headers/api/{0}.json`",
                    model->release, sources.headers.include_directory));
    for (const std::string& line : diff_models(*kept, *model)) problems.push_back(line);
  }
  if (!sources.cupti.empty()) compare_cupti(*model, sources.cupti, problems);
  return problems;
}

}  // namespace rota::codegen
