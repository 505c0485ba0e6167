// What is preloaded into a program: librota.so as installed, or a copy of it fitted to the real driver; and
// librota-nvml.so in front of the machine's libnvidia-ml.so.1, where it has one, in the same way.
//
// Frameworks look whether the driver has a function by asking for its name. So where the driver lacks functions that
// rota knows, or has some that rota does not know, the preload is a copy in which dlsym finds exactly the driver's:
// what the driver lacks is hidden, and what is new goes through a spare thunk to the driver untouched (thunks.S has a
// number of them). Hidden and not gone, since programs inherit the preload and may come to another driver
// (LD_LIBRARY_PATH set by a script, a driver updated within a session): those linked with such a function start and
// reach it if it is there. The price is that a weak reference to a missing function is not null. The copies lie in a
// cache (preload_cache.h), one folder for each driver and build of rota.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace rota::tool {

// Words of DriverPlace::place.
inline constexpr const char* kPlaceVariable = "ROTA_REAL_LIBCUDA";
inline constexpr const char* kPlaceLibraryPath = "LD_LIBRARY_PATH";
inline constexpr const char* kPlaceLoaderCache = "the loader's cache";
inline constexpr const char* kPlaceDefaultFolder = "a default folder";

// A libcuda.so.1 on the way that is not taken.
struct PassedOverDriver {
  std::string path;
  std::string place;
  std::string why;   // words about it: "it is …"
  bool own = false;  // it is rota's own library
};

enum class DriverSearch { kNotFound, kFound, kRefused };

struct DriverPlace {
  DriverSearch search = DriverSearch::kNotFound;
  std::string path;   // of the driver; or what ROTA_REAL_LIBCUDA names and cannot be used
  std::string place;  // how it was found; "" if it was not
  std::string why;    // why what ROTA_REAL_LIBCUDA names cannot be used
  std::vector<PassedOverDriver> passed_over;
};

// The driver that a program with this process's environment gets: searched as the thin preload does at the program's
// first CUDA call. Loads nothing.
DriverPlace find_driver();

// A driver's functions against those of a librota.so; cudbg* is the debugger's and does not count.
struct DriverFit {
  std::string problem;               // one line why the two cannot be compared; the rest is empty then
  std::size_t exports = 0;           // functions of the driver
  std::vector<std::string> missing;  // rota knows them, the driver has none
  std::vector<std::string> unknown;  // the driver has them, rota does not know them
  std::size_t spares = 0;            // unknown functions that a fitted copy has room for

  // Whether librota.so shows what the driver has as it is.
  bool plain() const { return missing.empty() && (unknown.empty() || spares == 0); }
};
DriverFit compare_with_driver(const std::string& driver, const std::string& shim);

struct Preload {
  std::string library;  // its path
  bool fitted = false;  // it is a copy fitted to the driver
  // One line for ROTA_LOG=info: why there is no fitted copy although the driver differs, or what it cannot show. Or "".
  std::string note;
};

// The library to preload in the place of `shim`, an installed librota.so. Makes the fitted copy if it is needed and not
// there yet; whatever goes wrong, the answer is `shim`.
Preload choose_preload(const std::string& shim);

// What choose_preload would answer; writes nothing. A copy that is still to be made counts as fitted.
Preload foresee_preload(const std::string& shim);

// The same for NVML, `shim` being an installed librota-nvml.so. The library's path is empty where programs are better
// off without: where `shim` is not there; where a program finds no libnvidia-ml.so.1 (some then go another way, and
// would not if one answered that there is none); and where it has functions that cannot be shown, which nvidia-smi
// needs.
Preload choose_nvml_preload(const std::string& shim);

}  // namespace rota::tool
