// CUDA arrays and mipmapped arrays: opaque memory that is charged to its GPU. Their bytes lie row after row and slice
// after slice, for copies only: no kernel reads a texture here.
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

  // Gives the bytes of the GPU back; a copy that is under way keeps the host's.
  void release();

  CUDA_ARRAY3D_DESCRIPTOR description{};  // as given; a level's extents are its own
  int gpu = 0;
  CUcontext context = nullptr;
  unsigned element = 0;  // bytes
  size_t row_bytes = 0;
  size_t rows = 1;    // of one slice, at least 1
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

// Gives back the arrays of a context that ends.
void release_arrays(CUcontext context);

}  // namespace rota::sim
