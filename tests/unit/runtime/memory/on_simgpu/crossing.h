// Every route by which a program gets an address, crossed with every call that frees one and with what may happen in
// between. Most of these are errors of the program. rota has to answer all of them as the driver does, and its ledger
// has to be empty afterwards.
#pragma once

#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/machine.h"

namespace rota::test {

// What one combination uses: a context of GPU 0 and what was made there.
struct Scene {
  CUcontext context = nullptr;
  CUcontext other = nullptr;  // GPU 1's primary one
  CUstream stream = nullptr;
  CUstream stream_of_other = nullptr;
  CUstream capturing = nullptr;
  CUmemoryPool pool = nullptr;           // made by the route, if any
  std::vector<CUgraph> graphs;           // made by the route or by a free
  std::vector<CUgraphExec> executables;  // likewise
};

// Takes memory and returns its address; 0 where the driver refuses. The answers of its calls are noted.
struct Route {
  const char* name;
  CUdeviceptr (*take)(Scene& scene);
};
const std::vector<Route>& routes();

// Frees it; its answers are noted as well.
struct Free {
  const char* name;
  void (*give)(Scene& scene, CUdeviceptr address);
};
const std::vector<Free>& frees();

inline constexpr std::size_t kCrossedBytes = 2 * kMiB;

// Notes what a call answers, for the comparison.
CUresult answered(const char* call, CUresult result);
// The first error among the answers since the last call of this function, or success.
CUresult first_error();
#define ANSWERED(call) rota::test::answered(#call, (call))

}  // namespace rota::test
