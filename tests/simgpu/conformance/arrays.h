// What the rules about arrays share.
#pragma once

#include "tests/simgpu/conformance/conformance.h"

namespace conformance {

// Of unsigned words with one channel.
inline CUDA_ARRAY3D_DESCRIPTOR described(size_t width, size_t height, size_t depth, unsigned flags = 0) {
  return {width, height, depth, CU_AD_FORMAT_UNSIGNED_INT32, 1, flags};
}

class Array {
 public:
  explicit Array(const CUDA_ARRAY3D_DESCRIPTOR& description) { CHECK_OK(cu.cuArray3DCreate_v2(&array_, &description)); }
  ~Array() { cu.cuArrayDestroy(array_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  operator CUarray() const { return array_; }  // NOLINT(google-explicit-constructor)

 private:
  CUarray array_ = nullptr;
};

class Mipmap {
 public:
  Mipmap(const CUDA_ARRAY3D_DESCRIPTOR& description, unsigned levels) {
    CHECK_OK(cu.cuMipmappedArrayCreate(&mipmap_, &description, levels));
  }
  ~Mipmap() { cu.cuMipmappedArrayDestroy(mipmap_); }
  Mipmap(const Mipmap&) = delete;
  Mipmap& operator=(const Mipmap&) = delete;
  operator CUmipmappedArray() const { return mipmap_; }  // NOLINT(google-explicit-constructor)
  CUarray level(unsigned number) const {
    CUarray array = nullptr;
    CHECK_OK(cu.cuMipmappedArrayGetLevel(&array, mipmap_, number));
    return array;
  }

 private:
  CUmipmappedArray mipmap_ = nullptr;
};

}  // namespace conformance
