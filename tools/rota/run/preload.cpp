#include "tools/rota/run/preload.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>

#include "runtime/preload/attachment.h"
#include "runtime/preload/cuda/locate.h"
#include "tools/elf/elf.h"
#include "tools/rota/run/preload_cache.h"

namespace rota::tool {
namespace {

// runtime/preload/cuda/spares.inc
constexpr const char* kSparePrefix = "rota_spare_";

// A library of the driver, and the preload in front of it.
struct Interposed {
  const thin::WantedLibrary& wanted;
  const char* preload;  // file name
  const char* prefix;   // of its functions' names
  const char* first;    // a function without which it is not the library
  const char* why_not;  // the reason, then
  bool needs_all;       // a preload that hides functions of it is worse than none
};
constexpr Interposed kCuda{thin::kCuda, "librota.so", "cu", "cuInit", thin::kNoCuInit, false};
constexpr Interposed kNvml{thin::kNvml, "librota-nvml.so", "nvml", "nvmlInit_v2", thin::kNoNvmlInit, true};

// The library's own functions. Others that it may export (the debugger's cudbg*, or symbols that some library left
// visible) must stay out of the preload, which every program searches first.
std::vector<std::string> functions_of(const Interposed& library, const elf::Exports& exports) {
  const std::string prefix = library.prefix;
  std::vector<std::string> names;
  std::ranges::copy_if(exports.functions, std::back_inserter(names), [&](const std::string& name) {
    return name.size() > prefix.size() && name.starts_with(prefix) &&
           std::isupper(static_cast<unsigned char>(name[prefix.size()])) != 0;
  });
  return names;
}

std::vector<std::string> spares_of(const elf::Exports& exports) {
  std::vector<std::string> names;
  std::ranges::copy_if(exports.functions, std::back_inserter(names),
                       [](const std::string& name) { return name.starts_with(kSparePrefix); });
  return names;
}

DriverFit compare(const Interposed& library, const elf::Exports& driver, const elf::Exports& shim) {
  DriverFit fit;
  const auto theirs = functions_of(library, driver), ours = functions_of(library, shim);
  fit.exports = theirs.size();
  fit.spares = spares_of(shim).size();
  std::ranges::set_difference(ours, theirs, std::back_inserter(fit.missing));
  std::ranges::set_difference(theirs, ours, std::back_inserter(fit.unknown));
  return fit;
}

const char* place_name(thin::FoundBy place) {
  switch (place) {
    case thin::kFoundByVariable:
      return kPlaceVariable;
    case thin::kFoundInLibraryPath:
      return kPlaceLibraryPath;
    case thin::kFoundInLoaderCache:
      return kPlaceLoaderCache;
    case thin::kFoundInDefaultFolder:
      return kPlaceDefaultFolder;
    default:
      return "";
  }
}

// Reads a candidate's exports; refuses it, as the thin preload would, if it is a different library.
std::optional<elf::Exports> read_library(const Interposed& library, thin::Driver& driver) {
  auto exports = elf::read_exports(driver.path);
  if (!exports) {
    thin::refuse(driver, "its exports cannot be read");
    return std::nullopt;
  }
  if (!std::ranges::binary_search(exports->functions, library.first)) {
    thin::refuse(driver, library.why_not);
    return std::nullopt;
  }
  return std::move(*exports);
}

// Identified by content (build-id) if possible, since the same driver may be on many machines that share a home;
// otherwise by file.
std::string identity_of(const std::string& path, const struct stat& info) {
  const auto build_id = elf::read_build_id(path);
  if (build_id && !build_id->empty()) return fmt::format("{}:{}", *build_id, info.st_size);
  return fmt::format("{}:{}:{}:{}.{}", info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec,
                     info.st_mtim.tv_nsec);
}

// Increment it when a copy of the same library for the same driver would be made differently.
constexpr const char* kForm = "2";

std::string hash_of(const std::string& text) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211U;
  return fmt::format("{:016x}", hash);
}

// The search for a library to preload: takes the first place whose library has a fitted copy or proves to be a driver.
class Choice {
 public:
  Choice(const Interposed& library, std::string shim, bool may_write)
      : library_(library), shim_(std::move(shim)), may_write_(may_write), cache_(library.preload) {}

  Preload run() {
    if (stat(shim_.c_str(), &shim_file_) != 0 || !S_ISREG(shim_file_.st_mode)) return plain("");
    // Through links, since the core next to it is found in the same way.
    char resolved[PATH_MAX];
    const char* real = realpath(shim_.c_str(), resolved);
    const std::string folder(real == nullptr ? shim_ : real);
    core_ = folder.substr(0, folder.rfind('/')) + "/librota-core.so";
    shim_identity_ = identity_of(shim_, shim_file_) + core_ + kForm;
    thin::Driver driver;
    thin::locate_library(driver, library_.wanted, {&accept, nullptr, this});
    if (driver.state != kRotaDriverFound) return plain("");
    found_ = true;
    if (!cached_.empty()) return {cached_, true, ""};
    return fit(driver.path);
  }

  // After run(): whether there is a library to interpose on, and whether only a fitted copy shows all that it has.
  bool found() const { return found_; }
  bool only_fitted() const { return only_fitted_; }

 private:
  // A copy has the library's size.
  std::uintmax_t size() const { return static_cast<std::uintmax_t>(shim_file_.st_size); }

  Preload plain(const std::string& note) const { return {shim_, false, note}; }

  static bool accept(thin::Driver& driver, void* context) noexcept {
    auto& self = *static_cast<Choice*>(context);
    struct stat info;
    if (stat(driver.path, &info) != 0) return thin::refuse(driver, "it cannot be read");
    self.key_ = hash_of(identity_of(driver.path, info) + ' ' + self.shim_identity_);
    self.cached_ = self.cache_.find(self.key_, self.size(), self.core_);
    if (!self.cached_.empty()) return true;
    self.driver_exports_ = read_library(self.library_, driver);
    return self.driver_exports_.has_value();
  }

  Preload fit(const std::string& driver) {
    const auto exports = elf::read_exports(shim_);
    only_fitted_ = true;
    if (!exports) return plain(exports.error().text);
    const DriverFit fit = compare(library_, *driver_exports_, *exports);
    only_fitted_ = !fit.unknown.empty();
    if (fit.plain()) return plain("");
    elf::ExportChange change;
    for (const auto* names : {&exports->functions, &exports->objects}) {
      for (const std::string& name : *names) {
        if (name.starts_with(kSparePrefix)) continue;
        (std::ranges::binary_search(fit.missing, name) ? change.hide : change.keep).insert(name);
      }
    }
    const std::vector<std::string> spares = spares_of(*exports);
    std::size_t used = 0;
    for (const std::string& name : fit.unknown) {
      if (used < spares.size() && name.size() <= spares[used].size()) change.rename[spares[used++]] = name;
    }
    std::string note;
    if (used < fit.unknown.size()) {
      note = fmt::format(
          "programs do not see {} functions of {} that rota does not know: there is room for {}; update rota",
          fit.unknown.size() - used, driver, used);
      if (library_.needs_all) return plain(note);
    }
    if (!may_write_) return {cache_.place(key_), true, note};
    const auto made = cache_.add(
        key_, size(), core_, [&](const std::string& output) { return elf::write_with_exports(shim_, output, change); });
    if (made) return {*made, true, note};
    return plain(fmt::format("programs see functions that {} lacks, and do not see its new ones: {}", driver,
                             made.error().text));
  }

  const Interposed& library_;
  const std::string shim_;
  const bool may_write_;
  PreloadCache cache_;
  bool found_ = false;
  bool only_fitted_ = false;
  struct stat shim_file_{};
  std::string core_, shim_identity_, key_, cached_;
  std::optional<elf::Exports> driver_exports_;
};

}  // namespace

DriverPlace find_driver() {
  DriverPlace place;
  thin::Driver driver;
  const auto accept = [](thin::Driver& candidate, void*) noexcept {
    return read_library(kCuda, candidate).has_value();
  };
  const auto passed_over = [](const thin::Driver& candidate, void* context) noexcept {
    if (candidate.found_by == thin::kFoundByVariable) return;  // refused, and no other place is searched
    static_cast<DriverPlace*>(context)->passed_over.push_back({candidate.path, place_name(candidate.found_by),
                                                               candidate.detail,
                                                               std::string(candidate.detail) == thin::kOwnLibrary});
  };
  thin::locate_driver(driver, {accept, passed_over, &place});
  place.path = driver.path;
  place.place = place_name(driver.found_by);
  place.search = driver.state == kRotaDriverFound     ? DriverSearch::kFound
                 : driver.state == kRotaDriverRefused ? DriverSearch::kRefused
                                                      : DriverSearch::kNotFound;
  if (place.search == DriverSearch::kRefused) place.why = driver.detail;
  return place;
}

DriverFit compare_with_driver(const std::string& driver, const std::string& shim) {
  const auto theirs = elf::read_exports(driver), ours = elf::read_exports(shim);
  DriverFit fit;
  if (!theirs || !ours) {
    fit.problem = !theirs ? theirs.error().text : ours.error().text;
    return fit;
  }
  return compare(kCuda, *theirs, *ours);
}

Preload choose_preload(const std::string& shim) {
  return Choice(kCuda, shim, true).run();
}

Preload foresee_preload(const std::string& shim) {
  return Choice(kCuda, shim, false).run();
}

Preload choose_nvml_preload(const std::string& shim) {
  if (access(shim.c_str(), R_OK) != 0) return {};
  Choice choice(kNvml, shim, true);
  Preload preload = choice.run();
  if (!choice.found()) return {};
  if (!preload.fitted && choice.only_fitted()) {
    return {"", false,
            "NVML is not preloaded, so nvidia-smi shows the whole GPU to a program with a limit: " + preload.note};
  }
  return preload;
}

}  // namespace rota::tool
