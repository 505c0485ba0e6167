// The driver as files, and what is preloaded in front of it. Nothing is loaded here.
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "generated/driver_symbols.h"
#include "tools/elf/elf.h"
#include "tools/elf/image.h"
#include "tools/rota/doctor/gather.h"
#include "tools/rota/run/launch.h"
#include "tools/rota/run/listed_path.h"
#include "tools/rota/run/preload.h"

namespace rota::doctor {
namespace {

constexpr const char* kShim = "librota.so";

std::string base_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

std::string real_path(const std::string& path) {
  std::error_code error;
  const auto real = std::filesystem::canonical(path, error);
  return error ? path : real.string();
}

// The files that are mapped into this process.
std::vector<std::string> mapped_files() {
  std::ifstream maps("/proc/self/maps");
  std::vector<std::string> files;
  for (std::string line; std::getline(maps, line);) {
    const std::size_t slash = line.find('/');
    if (slash == std::string::npos) continue;
    const std::string file = line.substr(slash);
    if (files.empty() || files.back() != file) files.push_back(file);
  }
  return files;
}

PreloadedLibrary describe(const std::string& entry, const std::string& source, const std::vector<std::string>& mapped) {
  PreloadedLibrary library;
  library.path = entry;
  library.source = source;
  std::string file = entry;
  if (entry.find('/') == std::string::npos) {
    // The loader searched for it, and its path can be seen in this process, which has it mapped.
    const auto found =
        std::find_if(mapped.begin(), mapped.end(), [&](const std::string& path) { return base_name(path) == entry; });
    if (found != mapped.end()) file = *found;
  }
  library.present = access(file.c_str(), R_OK) == 0;
  const std::string name = base_name(entry);
  library.ours = name == kShim;
  library.companion = !library.ours && name.rfind("librota-", 0) == 0;
  if (const auto exports = elf::read_exports(file)) {
    library.cuda_functions = static_cast<std::size_t>(
        std::count_if(exports->functions.begin(), exports->functions.end(),
                      [](const std::string& function) { return find_symbol(function).has_value(); }));
  }
  return library;
}

}  // namespace

std::vector<std::string> preload_entries(const std::string& text) {
  std::vector<std::string> entries;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, line.find('#'));
    std::replace(line.begin(), line.end(), ':', ' ');
    std::istringstream words(line);
    for (std::string word; words >> word;) entries.push_back(word);
  }
  return entries;
}

DriverFacts gather_driver() {
  const tool::DriverPlace place = tool::find_driver();
  DriverFacts facts;
  facts.search = place.search == tool::DriverSearch::kFound     ? Search::kFound
                 : place.search == tool::DriverSearch::kRefused ? Search::kRefused
                                                                : Search::kNotFound;
  facts.path = place.path;
  facts.place = place.place;
  facts.why = place.why;
  for (const tool::PassedOverDriver& other : place.passed_over) {
    facts.passed_over.push_back({other.path, other.place, other.why, other.own});
  }
  if (facts.search != Search::kFound) return facts;
  facts.file = real_path(facts.path);
  // The name of a variable that only simgpu reads.
  if (const auto file = elf::MappedFile::open(facts.file)) {
    facts.simulated = std::string_view(file->bytes()).find("ROTA_SIM_UNREGISTERED") != std::string_view::npos;
  }
  const std::string shim = tool::shim_directory() + "/" + kShim;
  if (access(shim.c_str(), R_OK) != 0) return facts;  // which is a finding of its own
  facts.compared = true;
  tool::DriverFit fit = tool::compare_with_driver(facts.path, shim);
  facts.unreadable = fit.problem;
  facts.exports = fit.exports;
  facts.unknown = std::move(fit.unknown);
  facts.missing = std::move(fit.missing);
  return facts;
}

PreloadFacts gather_preload() {
  PreloadFacts facts;
  facts.directory = tool::shim_directory();
  const std::pair<const char*, const char*> files[] = {
      {kShim, ""},
      {"librota-core.so", ""},
      {"librota-cudart.so", "rota trace does not see the runtime API"},
      {"librota-nvml.so", "nvidia-smi shows the whole GPU to a program with a limit"},
  };
  for (const auto& [name, without] : files) {
    const std::string path = facts.directory + "/" + name;
    facts.files.push_back({.name = name,
                           .error = access(path.c_str(), R_OK) == 0 ? 0 : errno,
                           .required = *without == '\0',
                           .without = without});
  }
  const auto listed = tool::listed_path(facts.directory + "/" + kShim);
  if (!listed) facts.problem = facts.directory + " cannot be named in LD_PRELOAD: " + listed.error().text;
  const std::string shim = listed ? *listed : facts.directory + "/" + kShim;
  const tool::Preload chosen = tool::choose_preload(shim);
  facts.library = chosen.library;
  facts.fitted = chosen.fitted;
  facts.fit_note = chosen.note;
  const tool::Preload nvml = tool::choose_nvml_preload(shim.substr(0, shim.rfind('/')) + "/librota-nvml.so");
  facts.nvml_library = nvml.library;
  facts.nvml_note = nvml.note;
  facts.secure = getauxval(AT_SECURE) != 0;
  const std::vector<std::string> mapped = mapped_files();
  std::ifstream everywhere("/etc/ld.so.preload");
  std::stringstream text;
  text << everywhere.rdbuf();
  for (const std::string& entry : preload_entries(text.str())) {
    facts.libraries.push_back(describe(entry, "/etc/ld.so.preload", mapped));
  }
  if (const char* list = getenv("LD_PRELOAD")) {
    for (const std::string& entry : preload_entries(list))
      facts.libraries.push_back(describe(entry, "LD_PRELOAD", mapped));
  }
  facts.in_force =
      std::any_of(mapped.begin(), mapped.end(), [](const std::string& path) { return base_name(path) == kShim; });
  return facts;
}

}  // namespace rota::doctor
