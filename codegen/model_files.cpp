// The folder of models, cuda_headers/api: which releases it holds, and how one is added.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include <fmt/format.h>

#include "codegen/files.h"
#include "codegen/model.h"

namespace rota::codegen {
namespace {

namespace fs = std::filesystem;

std::string path_of(const std::string& directory, const std::string& release) {
  return fmt::format("{}/{}.json", directory, release);
}

// Oldest first.
std::vector<std::string> releases_in(const std::string& directory) {
  std::vector<std::string> releases;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string release = entry.path().stem().string();
    if (entry.path().extension() == ".json" && release_number(release) != 0) releases.push_back(release);
  }
  std::ranges::sort(releases, {}, [](const std::string& release) { return release_number(release); });
  return releases;
}

Result<std::vector<Model>> load(const std::string& directory) {
  std::vector<Model> models;
  for (const std::string& release : releases_in(directory)) {
    const std::string path = path_of(directory, release);
    const auto text = read_file(path);
    if (!text) return Error{fmt::format("{}: cannot be opened; make it with `rota-codegen extract`", path)};
    auto model = parse_model(*text, path, models.empty() ? nullptr : &models.back());
    if (!model) return model.error();
    if (model->release != release) return Error{fmt::format("{}: holds CUDA {}", path, model->release)};
    models.push_back(std::move(*model));
  }
  return models;
}

std::optional<Error> write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file) return std::nullopt;
  return Error{fmt::format("{}: cannot be written", path)};
}

}  // namespace

Result<std::vector<Model>> load_models(const std::string& directory) {
  auto models = load(directory);
  if (models && models->empty()) {
    return Error{fmt::format("{}: no model of a CUDA release; make one with `rota-codegen extract`", directory)};
  }
  return models;
}

namespace {

// Enumerators, fields and whole types that one extraction of a release found and another did not.
void lost_types(const Api& before, const Api& now, std::vector<std::string>& lost) {
  for (const Enum& enumeration : before.enums) {
    const Enum* const other = now.find_enum(enumeration.name);
    for (const Enumerator& enumerator : enumeration.enumerators) {
      if (!other ||
          std::ranges::find(other->enumerators, enumerator.name, &Enumerator::name) == other->enumerators.end())
        lost.push_back(enumerator.name);
    }
  }
  for (const Record& record : before.records) {
    const Record* const other = now.find_record(record.name);
    if (!other || (record.complete && !other->complete)) lost.push_back(record.name);
    if (!other) continue;
    for (const Field& field : record.fields) {
      if (std::ranges::find(other->fields, field.name, &Field::name) == other->fields.end())
        lost.push_back(fmt::format("{}.{}", record.name, field.name));
    }
  }
  for (const Typedef& alias : before.typedefs) {
    if (!now.has_type(alias.name)) lost.push_back(alias.name);
  }
  for (const Callback& callback : before.callbacks) {
    if (!now.has_type(callback.name)) lost.push_back(callback.name);
  }
}

}  // namespace

std::vector<std::string> lost_declarations(const Model& before, const Model& now) {
  std::vector<std::string> lost;
  if (before.release == now.release) {
    lost_types(before.driver, now.driver, lost);
    lost_types(before.runtime, now.runtime, lost);
  }
  for (const Function& function : before.driver.functions) {
    if (!now.driver.find_function(function.name)) lost.push_back(function.name);
  }
  for (const Function& function : before.runtime.functions) {
    const bool exported = std::ranges::binary_search(now.library.undeclared, function.name);
    const bool same_release = before.release == now.release;
    if (!now.runtime.find_function(function.name) && (exported || same_release)) lost.push_back(function.name);
  }
  return lost;
}

Result<std::vector<std::string>> save_model(const std::string& directory, const Model& model) {
  auto models = load(directory);
  if (!models) return models.error();
  const int number = release_number(model.release);
  auto place =
      std::ranges::find_if(*models, [&](const Model& other) { return release_number(other.release) >= number; });
  const bool replaces = place != models->end() && place->release == model.release;
  const Model* const before = place == models->begin() ? nullptr : &*(place - 1);
  const auto next = replaces ? place + 1 : place;
  std::vector<std::pair<std::string, std::string>> files{
      {path_of(directory, model.release), model_to_json(model, before)}};
  if (next != models->end()) files.emplace_back(path_of(directory, next->release), model_to_json(*next, &model));
  std::vector<std::string> written;
  for (const auto& [path, text] : files) {
    if (auto error = write(path + ".new", text)) return *error;
    written.push_back(path);
  }
  for (const std::string& path : written) {
    std::error_code error;
    fs::rename(path + ".new", path, error);
    if (error) return Error{fmt::format("{}: {}", path, error.message())};
  }
  return written;
}

}  // namespace rota::codegen
