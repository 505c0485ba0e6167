// Every route by which a program gets an address, crossed with every call that frees one and with what may happen in
// between. Most of these are wrong in one way or another: rota has to give the driver's answer to all of them, and to
// end with nothing in its books.
#pragma once

#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/machine.h"

namespace rota::test {

// What one crossing happens in: a context of GPU 0 and what was made there.
struct Scene {
  CUcontext context = nullptr;
  CUcontext other = nullptr;  // GPU 1's primary one
  CUstream stream = nullptr;
  CUstream stream_of_other = nullptr;
  CUstream capturing = nullptr;
  CUmemoryPool pool = nullptr;           // that the route made, if any
  std::vector<CUgraph> graphs;           // that it made, or a free did
  std::vector<CUgraphExec> executables;  // likewise
};

// Takes memory and tells of it; 0 where the driver refuses. What is answered on the way is noted.
struct Route {
  const char* name;
  CUdeviceptr (*take)(Scene& scene);
};
const std::vector<Route>& routes();

// Frees it; noted as well.
struct Free {
  const char* name;
  void (*give)(Scene& scene, CUdeviceptr address);
};
const std::vector<Free>& frees();

inline constexpr std::size_t kCrossedBytes = 2 * kMiB;

// Notes what a call answers, for the comparison.
CUresult answered(const char* call, CUresult result);
// The first error among the answers since it was asked last, or success.
CUresult first_error();
#define ANSWERED(call) rota::test::answered(#call, (call))

}  // namespace rota::test
