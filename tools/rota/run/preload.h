// What is preloaded into a program: librota.so as installed, or a copy of it fitted to the real driver; and in the same
// way librota-nvml.so in front of the machine's libnvidia-ml.so.1, if there is one.
//
// Frameworks test for a driver function by looking up its name. So if the driver does not have functions that rota
// knows, or has some that rota does not know, the preload is a copy in which dlsym finds exactly the driver's
// functions: what the driver lacks is hidden, and new functions pass through a spare thunk to the driver untouched
// (thunks.S has a number of them). They are hidden, not removed, since programs inherit the preload and may use another
// driver (LD_LIBRARY_PATH set by a script, a driver updated within a session): programs linked with such a function
// then start and reach it if it exists. The price is that a weak reference to a missing function is not null. The
// copies are kept in a cache (preload_cache.h), one folder for each driver and build of rota.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace rota::tool {

// Values of DriverPlace::place.
inline constexpr const char* kPlaceVariable = "ROTA_REAL_LIBCUDA";
inline constexpr const char* kPlaceLibraryPath = "LD_LIBRARY_PATH";
inline constexpr const char* kPlaceLoaderCache = "the loader's cache";
inline constexpr const char* kPlaceDefaultFolder = "a default folder";

// A libcuda.so.1 that was found but not accepted.
struct PassedOverDriver {
  std::string path;
  std::string place;
  std::string why;   // the reason: "it is …"
  bool own = false;  // it is rota's own library
};

enum class DriverSearch { kNotFound, kFound, kRefused };

struct DriverPlace {
  DriverSearch search = DriverSearch::kNotFound;
  std::string path;   // of the driver, or of the unusable file that ROTA_REAL_LIBCUDA names
  std::string place;  // how it was found; "" if it was not
  std::string why;    // why the file that ROTA_REAL_LIBCUDA names cannot be used
  std::vector<PassedOverDriver> passed_over;
};

// The driver that a program with this process's environment gets: found as the thin preload does at the program's first
// CUDA call. Loads nothing.
DriverPlace find_driver();

// Compares a driver's functions with those of a librota.so; cudbg* belongs to the debugger and does not count.
struct DriverFit {
  std::string problem;               // one line that says why they cannot be compared; then the rest is empty
  std::size_t exports = 0;           // functions of the driver
  std::vector<std::string> missing;  // rota knows them, the driver has none
  std::vector<std::string> unknown;  // the driver has them, rota does not know them
  std::size_t spares = 0;            // unknown functions for which a fitted copy has thunks

  // Whether librota.so as installed shows exactly what the driver has.
  bool plain() const { return missing.empty() && (unknown.empty() || spares == 0); }
};
DriverFit compare_with_driver(const std::string& driver, const std::string& shim);

struct Preload {
  std::string library;  // its path
  bool fitted = false;  // it is a copy fitted to the driver
  // One line for ROTA_LOG=info, or "": why there is no fitted copy although the driver differs, or what it cannot show.
  std::string note;
};

// The library to preload instead of `shim`, an installed librota.so. Creates the fitted copy if it is needed and does
// not exist yet; if anything fails, the result is `shim`.
Preload choose_preload(const std::string& shim);

// What choose_preload would return; writes nothing. A copy that would have to be created counts as fitted.
Preload foresee_preload(const std::string& shim);

// The same for NVML, `shim` being an installed librota-nvml.so. The library's path is empty where programs are better
// off without it: if `shim` does not exist; if there is no libnvidia-ml.so.1 (some programs then take another path,
// which a preload would prevent); and if NVML has functions that cannot be shown, which nvidia-smi needs.
Preload choose_nvml_preload(const std::string& shim);

}  // namespace rota::tool
