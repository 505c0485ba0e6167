// Finds the real libcuda.so.1 or libnvidia-ml.so.1, for the thin preloads at the first call and for `rota run` before
// the program starts, so that both find the same one. What they do with it differs, hence DriverJudge. No libstdc++ in
// here.
//
// Asking the loader for "libcuda.so.1" would give the thin preload, which carries that SONAME; opened by its path, the
// loader compares files, not names.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "runtime/preload/object.h"

#define ROTA_HIDDEN __attribute__((visibility("hidden")))

namespace rota::thin {

enum FoundBy : uint32_t {
  kFoundNowhere,
  kFoundByVariable,  // ROTA_REAL_LIBCUDA
  kFoundInLibraryPath,
  kFoundInLoaderCache,
  kFoundInDefaultFolder,
};

struct Driver {
  void* handle = nullptr;  // for DriverJudge::accept to fill
  uint32_t state = 0;      // RotaDriverState
  FoundBy found_by = kFoundNowhere;
  char path[kPathBytes];  // absolute; of the driver, or of the unusable file that ROTA_REAL_LIBCUDA names
  char detail[256];       // why that cannot be used
};

// What to do with each libcuda.so.1 that is found.
struct DriverJudge {
  // Whether driver.path, which is a library for this machine and no copy of the thin preload, is a CUDA driver. If not,
  // it puts the reason into driver.detail and the search continues.
  bool (*accept)(Driver& driver, void* context) noexcept;
  // Called for each one that exists but is not accepted, with driver.detail. May be null.
  void (*passed_over)(const Driver& driver, void* context) noexcept;
  void* context;
};

// Reasons that other code compares with or also uses.
inline constexpr char kNoSuchFile[] = "there is no such file";
inline constexpr char kOwnLibrary[] = "it is rota's own librota.so";
inline constexpr char kNoCuInit[] = "it is not a CUDA driver: it has no cuInit";
inline constexpr char kNoNvmlInit[] = "it is not NVML: it has no nvmlInit_v2";

struct WantedLibrary {
  const char* name;
  const char* variable;  // of the environment, that gives its path; null: there is none
};
inline constexpr WantedLibrary kCuda{"libcuda.so.1", "ROTA_REAL_LIBCUDA"};
inline constexpr WantedLibrary kNvml{"libnvidia-ml.so.1", nullptr};

// What the variable names, else where the loader and containers keep such a library: the first that is accepted. Any
// number of threads may call at once.
ROTA_HIDDEN void locate_library(Driver& driver, const WantedLibrary& wanted, const DriverJudge& judge) noexcept;
// The same for kCuda.
ROTA_HIDDEN void locate_driver(Driver& driver, const DriverJudge& judge) noexcept;

// Puts a line into driver.detail, and is false.
ROTA_HIDDEN bool refuse(Driver& driver, const char* why) noexcept;

}  // namespace rota::thin
