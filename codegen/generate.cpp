#include "codegen/generate.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include <fmt/format.h>

namespace rota::codegen {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// "12.10" is newer than "12.9".
std::optional<std::pair<int, int>> release_order(const std::string& release) {
  std::pair<int, int> order{};
  const char* end = release.data() + release.size();
  const auto [dot, major_error] = std::from_chars(release.data(), end, order.first);
  if (major_error != std::errc() || dot == end || *dot != '.') return std::nullopt;
  const auto [rest, minor_error] = std::from_chars(dot + 1, end, order.second);
  if (minor_error != std::errc() || rest != end) return std::nullopt;
  return order;
}

}  // namespace

Result<std::string> newest_release(const std::string& directory) {
  std::optional<std::pair<std::pair<int, int>, std::string>> newest;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() != ".json") continue;
    const std::string release = entry.path().stem().string();
    const auto order = release_order(release);
    if (order && (!newest || *order > newest->first)) newest = {*order, release};
  }
  if (!newest) {
    return Error{fmt::format("{}: no model of a CUDA release; make one with `rota-codegen extract`", directory)};
  }
  return newest->second;
}

Result<Inputs> make_inputs(Model model, Policy policy) {
  Inputs inputs{.model = std::move(model), .policy = std::move(policy), .symbols = {}};
  for (const Function& function : inputs.model.driver.functions) inputs.symbols.push_back(function.name);
  for (const auto& [name, function] : inputs.policy.functions) {
    if (!function.undeclared) continue;
    if (inputs.model.driver.find_function(name)) {
      return Error{fmt::format("policy.toml:{}: {} is called undeclared, but the headers of CUDA {} declare it",
                               function.line, name, inputs.model.release)};
    }
    inputs.symbols.push_back(name);
  }
  std::ranges::sort(inputs.symbols);
  return inputs;
}

Result<Inputs> load_inputs(const std::string& root) {
  const std::string models = root + "/cuda_headers/api";
  const auto release = newest_release(models);
  if (!release) return release.error();
  auto model = load_model(fmt::format("{}/{}.json", models, *release));
  if (!model) return model.error();
  auto policy = load_policy(root + "/cuda_headers/policy.toml");
  if (!policy) return policy.error();
  return make_inputs(std::move(*model), std::move(*policy));
}

Result<std::vector<EmittedFile>> emit_all(const Inputs& inputs) {
  auto files = emit_driver(inputs);
  if (!files) return files;
#ifdef ROTA_HAVE_EMIT_TRACE
  auto trace = emit_trace(inputs);
  if (!trace) return trace;
  files->insert(files->end(), trace->begin(), trace->end());
#endif
  std::ranges::sort(*files, {}, &EmittedFile::name);
  return files;
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
    if (read_file(fs::path(directory) / file.name) != file.content) stale.push_back(file.name);
  }
  return stale;
}

}  // namespace rota::codegen
