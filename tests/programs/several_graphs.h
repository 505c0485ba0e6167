// The graphs of several.cpp: for a GPU, and with some part on another one.
#pragma once

#include <string>

#include "tests/programs/program.h"

struct Gpu {
  program::CUcontext context = nullptr;
  program::CUdeviceptr memory = 0;
  program::CUstream stream = nullptr;
  program::CUfunction spin = nullptr;
  program::CUfunction spin_until = nullptr;
  program::CUgraphExec graph = nullptr;
  std::uint32_t pattern = 0;
};

inline void use(const Gpu& gpu) {
  CHECK(cuCtxSetCurrent(gpu.context));
}

// `kind` is that of several.cpp's option.
program::CUgraphExec make_graph(const std::string& kind, const Gpu& gpu, const Gpu& other, unsigned long nanoseconds);
