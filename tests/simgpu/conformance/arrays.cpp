// CUDA arrays: what can be made, what they tell, what they cost.
#include "tests/simgpu/conformance/arrays.h"

namespace {

CUresult try_create(const CUDA_ARRAY3D_DESCRIPTOR& description) {
  CUarray array = nullptr;
  CUresult result = cu.cuArray3DCreate_v2(&array, &description);
  if (result == CUDA_SUCCESS && array != nullptr) CHECK_OK(cu.cuArrayDestroy(array));
  return result;
}

size_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  CHECK_OK(cu.cuMemGetInfo_v2(&free, &total));
  return free;
}

}  // namespace

RULE(arrays, tell_their_description, "idle:cuArrayGetDescriptor_v2",
     "cuArrayGetDescriptor gives extents, format and channels as the array was made") {
  Session session;
  CUDA_ARRAY_DESCRIPTOR made{64, 32, CU_AD_FORMAT_FLOAT, 2};
  CUarray array = nullptr;
  CHECK_OK(cu.cuArrayCreate_v2(&array, &made));
  CUDA_ARRAY_DESCRIPTOR told{};
  CHECK_OK(cu.cuArrayGetDescriptor_v2(&told, array));
  CHECK_EQ(told.Width, 64);
  CHECK_EQ(told.Height, 32);
  CHECK_EQ(told.Format, CU_AD_FORMAT_FLOAT);
  CHECK_EQ(told.NumChannels, 2);
  CHECK_OK(cu.cuArrayDestroy(array));
}

RULE(arrays, flat_ones_have_no_depth, "idle:cuArray3DGetDescriptor_v2",
     "cuArray3DGetDescriptor of a one-dimensional array tells no height and no depth") {
  Session session;
  CUDA_ARRAY_DESCRIPTOR made{64, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  CUarray array = nullptr;
  CHECK_OK(cu.cuArrayCreate_v2(&array, &made));
  CUDA_ARRAY3D_DESCRIPTOR told = described(9, 9, 9);
  CHECK_OK(cu.cuArray3DGetDescriptor_v2(&told, array));
  CHECK_EQ(told.Width, 64);
  CHECK_EQ(told.Height, 0);
  CHECK_EQ(told.Depth, 0);
  CHECK_OK(cu.cuArrayDestroy(array));
}

RULE(arrays, keep_their_flags, "idle:cuArray3DGetDescriptor_v2",
     "cuArray3DGetDescriptor tells the flags and the number of layers") {
  Session session;
  Array array(described(32, 16, 5, CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST));
  CUDA_ARRAY3D_DESCRIPTOR told{};
  CHECK_OK(cu.cuArray3DGetDescriptor_v2(&told, array));
  CHECK_EQ(told.Depth, 5);
  CHECK_EQ(told.Flags, CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST);
}

RULE(arrays, of_no_width_are_refused, "lenient:cuArrayCreate_v2",
     "cuArrayCreate without width answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUDA_ARRAY_DESCRIPTOR made{0, 16, CU_AD_FORMAT_FLOAT, 1};
  CUarray array = nullptr;
  CHECK_EQ(cu.cuArrayCreate_v2(&array, &made), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, of_three_channels_are_refused, "lenient:cuArrayCreate_v2",
     "cuArrayCreate with 3 channels answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUDA_ARRAY_DESCRIPTOR made{16, 16, CU_AD_FORMAT_FLOAT, 3};
  CUarray array = nullptr;
  CHECK_EQ(cu.cuArrayCreate_v2(&array, &made), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, of_unknown_format_are_refused, "lenient:cuArrayCreate_v2",
     "cuArrayCreate with a format that does not exist answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUDA_ARRAY_DESCRIPTOR made{16, 16, static_cast<CUarray_format>(0x7f), 1};
  CUarray array = nullptr;
  CHECK_EQ(cu.cuArrayCreate_v2(&array, &made), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, wider_than_textures_are_refused, "lenient:cuArray3DCreate_v2",
     "an array wider than the device's largest texture of its kind is refused with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  int most = 0;
  CHECK_OK(cu.cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, session.device()));
  CHECK_EQ(try_create(described(static_cast<size_t>(most) + 1, 4, 4)), CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(cu.cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, session.device()));
  CHECK_EQ(try_create(described(static_cast<size_t>(most) + 1, 0, 0)), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, with_depth_need_height, "lenient:cuArray3DCreate_v2",
     "an array with depth but no height, and without layers, is refused with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(try_create(described(16, 0, 4)), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, of_one_dimensional_layers, "refuse:cuArray3DCreate_v2",
     "an array of layers may have no height: each layer is one-dimensional then") {
  Session session;
  CHECK_OK(try_create(described(16, 0, 4, CUDA_ARRAY3D_LAYERED)));
}

RULE(arrays, of_no_layers_are_refused, "lenient:cuArray3DCreate_v2",
     "an array of layers without depth is refused with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(try_create(described(16, 16, 0, CUDA_ARRAY3D_LAYERED)), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, cubemaps_are_square, "lenient:cuArray3DCreate_v2",
     "a cubemap whose width is not its height is refused with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_OK(try_create(described(16, 16, 6, CUDA_ARRAY3D_CUBEMAP)));
  CHECK_EQ(try_create(described(16, 8, 6, CUDA_ARRAY3D_CUBEMAP)), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, cubemaps_have_six_faces, "lenient:cuArray3DCreate_v2",
     "a cubemap has depth 6, one with layers a multiple of 6") {
  Session session;
  CHECK_EQ(try_create(described(16, 16, 12, CUDA_ARRAY3D_CUBEMAP)), CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(try_create(described(16, 16, 12, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED)));
  CHECK_EQ(try_create(described(16, 16, 13, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED)), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, for_gather_are_flat, "lenient:cuArray3DCreate_v2", "an array for texture gather must be two-dimensional") {
  Session session;
  CHECK_OK(try_create(described(16, 16, 0, CUDA_ARRAY3D_TEXTURE_GATHER)));
  CHECK_EQ(try_create(described(16, 16, 4, CUDA_ARRAY3D_TEXTURE_GATHER)), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, take_memory_and_give_it_back, "arrays_keep_their_memory",
     "an array takes device memory until it is destroyed") {
  Session session;
  bool took = false;
  bool gave = false;
  // Other processes may allocate and free meanwhile.
  for (int round = 0; round < 20 && !(took && gave); ++round) {
    size_t before = free_bytes();
    CUarray array = nullptr;
    CUDA_ARRAY3D_DESCRIPTOR description = described(4096, 2048, 0);
    CHECK_OK(cu.cuArray3DCreate_v2(&array, &description));
    size_t during = free_bytes();
    CHECK_OK(cu.cuArrayDestroy(array));
    size_t after = free_bytes();
    took = took || before >= during + (16U << 20);
    gave = gave || after >= during + (16U << 20);
  }
  CHECK(took);
  CHECK(gave);
}

RULE(arrays, ordinary_ones_have_no_requirements, "lenient:cuArrayGetMemoryRequirements",
     "the memory requirements of an array that has its memory are refused with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Array array(described(64, 64, 0));
  CUDA_ARRAY_MEMORY_REQUIREMENTS requirements{};
  CHECK_EQ(cu.cuArrayGetMemoryRequirements(&requirements, array, session.device()), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, ordinary_ones_are_not_sparse, "lenient:cuArrayGetSparseProperties",
     "the sparse properties of an array that is not sparse are refused with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Array array(described(64, 64, 0));
  CUDA_ARRAY_SPARSE_PROPERTIES properties{};
  CHECK_EQ(cu.cuArrayGetSparseProperties(&properties, array), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, ordinary_ones_have_no_planes, "lenient:cuArrayGetPlane",
     "cuArrayGetPlane of an array of a format without planes answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Array array(described(64, 64, 0));
  CUarray plane = nullptr;
  CHECK_EQ(cu.cuArrayGetPlane(&plane, array, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, levels_halve, "levels_do_not_shrink",
     "each level of a mipmapped array has half the extents of the one before, and at least 1") {
  Session session;
  Mipmap mipmap(described(16, 4, 0), 5);
  for (unsigned level = 0; level < 5; ++level) {
    CUDA_ARRAY3D_DESCRIPTOR told{};
    CHECK_OK(cu.cuArray3DGetDescriptor_v2(&told, mipmap.level(level)));
    CHECK_EQ(told.Width, 16U >> level);
    CHECK_EQ(told.Height, level < 2 ? 4U >> level : 1U);
  }
}

RULE(arrays, levels_are_as_many_as_make_sense, "lenient:cuMipmappedArrayGetLevel",
     "more levels than halvings are not made, and asking for one answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Mipmap mipmap(described(16, 4, 0), 100);
  CHECK(mipmap.level(4) != nullptr);
  CUarray level = nullptr;
  CHECK_EQ(cu.cuMipmappedArrayGetLevel(&level, mipmap, 5), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, no_levels_are_one, "refuse:cuMipmappedArrayCreate", "a mipmapped array made with 0 levels has one") {
  Session session;
  Mipmap mipmap(described(16, 16, 0), 0);
  CHECK(mipmap.level(0) != nullptr);
  CUarray level = nullptr;
  CHECK_EQ(cu.cuMipmappedArrayGetLevel(&level, mipmap, 1), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, levels_keep_their_layers, "levels_lose_layers",
     "every level of a layered mipmapped array has all layers") {
  Session session;
  Mipmap mipmap(described(16, 16, 6, CUDA_ARRAY3D_LAYERED), 3);
  CUDA_ARRAY3D_DESCRIPTOR told{};
  CHECK_OK(cu.cuArray3DGetDescriptor_v2(&told, mipmap.level(2)));
  CHECK_EQ(told.Width, 4);
  CHECK_EQ(told.Depth, 6);
}

RULE(arrays, mipmaps_check_what_arrays_check, "lenient:cuMipmappedArrayCreate",
     "cuMipmappedArrayCreate refuses what cuArray3DCreate refuses") {
  Session session;
  CUmipmappedArray mipmap = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR wrong = described(16, 16, 0);
  wrong.NumChannels = 3;
  CHECK_EQ(cu.cuMipmappedArrayCreate(&mipmap, &wrong, 1), CUDA_ERROR_INVALID_VALUE);
}
