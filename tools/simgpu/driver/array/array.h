// CUDA arrays and mipmapped arrays: opaque memory that is charged to its GPU. Their bytes are stored row by row and
// slice by slice, only for copies: kernels do not read textures here.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "tools/simgpu/driver/api.h"

namespace rota::sim {

struct Array {
  ~Array();
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  // Releases the GPU's bytes; a copy in progress keeps the host storage alive.
  void release();

  CUDA_ARRAY3D_DESCRIPTOR description{};  // as given; a mipmap level has its own extents
  int gpu = 0;
  CUcontext context = nullptr;
  unsigned element = 0;  // bytes
  size_t row_bytes = 0;
  size_t rows = 1;    // per slice, at least 1
  size_t slices = 1;  // depth or layers, at least 1
  bool level = false;
  std::shared_ptr<char> bytes;
  std::atomic<uint64_t> charged{0};

  CUarray handle() { return reinterpret_cast<CUarray>(this); }
};

struct MipmappedArray {
  CUDA_ARRAY3D_DESCRIPTOR description{};
  CUcontext context = nullptr;
  std::vector<std::shared_ptr<Array>> levels;
  CUmipmappedArray handle() { return reinterpret_cast<CUmipmappedArray>(this); }
};

// Frees the arrays of a context that is being destroyed.
void release_arrays(CUcontext context);

}  // namespace rota::sim
