// Which driver a libcuda.so.1 of simgpu poses as. simgpu-driver writes copies of the library that pose as one version:
// it finds this record in the file by its mark and writes the version into it. In the library as built the version is
// 0: that file exports everything, and ROTA_SIM_DRIVER_VERSION says which version it reports.
#pragma once

#include "generated/driver_releases.h"

namespace rota::sim {

#define ROTA_SIM_POSED_MARK "simgpu poses as CUDA: "
#define ROTA_SIM_POSED_END " and as nothing else"

// The end distinguishes it from a program that only contains the mark, such as simgpu-driver.
struct Posed {
  char mark[sizeof ROTA_SIM_POSED_MARK];
  int version;  // 1000 * major + 10 * minor; 0: as built
  char end[sizeof ROTA_SIM_POSED_END];
};

// The versions that a driver may pose as: from the first one with managed memory to versions not yet released.
inline constexpr int kOldestPosed = 6000;
inline constexpr int kNewestPosed = 99'990;

// A driver newer than every release that rota covers has functions that rota does not know. These represent them
// (future_exports.cpp). In the library as built they have names that no driver has.
struct FutureExport {
  const char* name;
  const char* name_as_built;
};
inline constexpr FutureExport kFutureExports[] = {
    {"cuRotaSimFutureCall", "rota_sim_future_call"},
    {"cuRotaSimFutureFillAsync", "rota_sim_future_fill_async"},
};

// Whether a driver of this version exports a symbol whose kSymbolSince is `since` (0: every driver has it).
constexpr bool exports(int version, int since) {
  return since <= version;
}
constexpr bool has_future_exports(int version) {
  return version > kNewestCovered;
}

}  // namespace rota::sim
