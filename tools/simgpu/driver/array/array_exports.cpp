// CUDA arrays and mipmapped arrays. Planar and compressed formats and sparse arrays are not simulated
// (CUDA_ERROR_NOT_SUPPORTED).
#include <sys/mman.h>

#include <algorithm>

#include "tools/simgpu/driver/array/array.h"
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

constexpr unsigned kLayered = 0x01;     // CUDA_ARRAY3D_LAYERED
constexpr unsigned kSurface = 0x02;     // CUDA_ARRAY3D_SURFACE_LDST
constexpr unsigned kCubemap = 0x04;     // CUDA_ARRAY3D_CUBEMAP
constexpr unsigned kGather = 0x08;      // CUDA_ARRAY3D_TEXTURE_GATHER
constexpr unsigned kSparse = 0x40;      // CUDA_ARRAY3D_SPARSE
constexpr unsigned kDeferred = 0x80;    // CUDA_ARRAY3D_DEFERRED_MAPPING
constexpr unsigned kAllFlags = 0x1ff;   // … and depth texture, colour attachment, video
constexpr uint64_t kAlignment = 65536;  // of memory that an array would be mapped to

// Bytes of an element; false if the format does not exist or needs another number of channels (INVALID_VALUE), or is
// not simulated (NOT_SUPPORTED).
CUresult element_size(CUarray_format format, unsigned channels, unsigned* bytes) {
  unsigned fixed_channels = 0;
  unsigned channel = 0;
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      channel = 1;
      break;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      channel = 2;
      break;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      channel = 4;
      break;
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1:
      channel = fixed_channels = 1;
      break;
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
      channel = 1;
      fixed_channels = 2;
      break;
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X4:
      channel = 1;
      fixed_channels = 4;
      break;
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1:
      channel = 2;
      fixed_channels = 1;
      break;
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X2:
      channel = 2;
      fixed_channels = 2;
      break;
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4:
      channel = 2;
      fixed_channels = 4;
      break;
    default: {
      auto number = static_cast<unsigned>(format);
      bool exists = (number >= 0x50 && number <= 0x5e) || (number >= 0x91 && number <= 0xb5);
      return exists ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    }
  }
  bool some = channels == 1 || channels == 2 || channels == 4;
  if (fixed_channels == 0 ? !some : channels != fixed_channels) return CUDA_ERROR_INVALID_VALUE;
  *bytes = channel * channels;
  return CUDA_SUCCESS;
}

// The largest extents of a kind of array, from the device's attributes; kNone: no separate limit for that extent.
struct Limits {
  CUdevice_attribute width;
  CUdevice_attribute height;
  CUdevice_attribute depth;
};
constexpr auto kNone = static_cast<CUdevice_attribute>(0);

Limits texture_limits(const CUDA_ARRAY3D_DESCRIPTOR& d, bool mipmapped) {
  bool layered = (d.Flags & kLayered) != 0;
  if ((d.Flags & kCubemap) != 0) {
    if (layered) {
      return {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH,
              CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH,
              CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS};
    }
    return {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH, kNone};
  }
  if (layered && d.Height == 0) {
    return {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH, kNone,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS};
  }
  if (layered) {
    return {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS};
  }
  if (d.Depth != 0) {
    return {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH};
  }
  if (d.Height != 0) {
    if ((d.Flags & kGather) != 0) {
      return {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT,
              kNone};
    }
    if (mipmapped) {
      return {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH,
              CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT, kNone};
    }
    return {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, kNone};
  }
  return {
      mipmapped ? CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH : CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH,
      kNone, kNone};
}

Limits surface_limits(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  bool layered = (d.Flags & kLayered) != 0;
  if ((d.Flags & kCubemap) != 0) {
    if (layered) {
      return {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH,
              CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH,
              CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS};
    }
    return {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH, CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH, kNone};
  }
  if (layered && d.Height == 0) {
    return {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH, kNone,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS};
  }
  if (layered) {
    return {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH, CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS};
  }
  if (d.Depth != 0) {
    return {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH, CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH};
  }
  if (d.Height != 0) {
    return {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH, CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT, kNone};
  }
  return {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH, kNone, kNone};
}

bool within(const CUDA_ARRAY3D_DESCRIPTOR& d, const Limits& limits) {
  const DeviceFigures& device = driver().state().profile().device;
  auto fits = [&](size_t extent, CUdevice_attribute limit) {
    return limit == kNone || extent <= static_cast<size_t>(device.attribute(limit));
  };
  return fits(d.Width, limits.width) && fits(d.Height, limits.height) && fits(d.Depth, limits.depth);
}

CUresult check(const CUDA_ARRAY3D_DESCRIPTOR& d, bool mipmapped, unsigned* element) {
  ROTA_SIM_CHECK(element_size(d.Format, d.NumChannels, element));
  if (d.Width == 0 || (d.Flags & ~kAllFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  bool layered = (d.Flags & kLayered) != 0;
  if ((d.Flags & kCubemap) != 0) {
    bool faces = layered ? d.Depth != 0 && d.Depth % 6 == 0 : d.Depth == 6;
    if (d.Width != d.Height || !faces) return CUDA_ERROR_INVALID_VALUE;
  } else if (layered) {
    if (d.Depth == 0) return CUDA_ERROR_INVALID_VALUE;
  } else if (d.Depth != 0 && d.Height == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((d.Flags & kGather) != 0 && (d.Depth != 0 || d.Height == 0)) return CUDA_ERROR_INVALID_VALUE;
  if (!within(d, texture_limits(d, mipmapped))) return CUDA_ERROR_INVALID_VALUE;
  if ((d.Flags & kSurface) != 0 && !within(d, surface_limits(d))) return CUDA_ERROR_INVALID_VALUE;
  return (d.Flags & kSparse) != 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

uint64_t bytes_of(const Array& array) {
  return array.row_bytes * array.rows * array.slices;
}

// For a checked description: the extents are small enough that their product does not overflow.
CUresult allocate(const Context& context, const CUDA_ARRAY3D_DESCRIPTOR& d, unsigned element,
                  std::shared_ptr<Array>* out) {
  auto array = std::make_shared<Array>();
  array->description = d;
  array->gpu = context.gpu;
  array->context = const_cast<Context&>(context).handle();
  array->element = element;
  array->row_bytes = d.Width * element;
  array->rows = std::max<size_t>(d.Height, 1);
  array->slices = std::max<size_t>(d.Depth, 1);
  if ((d.Flags & kDeferred) == 0) {
    constexpr uint64_t kStep = AddressSpace::kGranularity;
    uint64_t charged = round_up(bytes_of(*array), kStep);
    Migration migration;
    if (!driver().take_device_bytes(context.gpu, charged, &migration)) return CUDA_ERROR_OUT_OF_MEMORY;
    array->charged = charged;
    void* memory = mmap(nullptr, charged, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    array->bytes = {static_cast<char*>(memory), [charged](char* bytes) { munmap(bytes, charged); }};
  }
  *out = std::move(array);
  return CUDA_SUCCESS;
}

CUresult create(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR& description) {
  ROTA_SIM_CONTEXT(context);
  unsigned element = 0;
  ROTA_SIM_CHECK(check(description, false, &element));
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  std::shared_ptr<Array> array;
  ROTA_SIM_CHECK(allocate(*context, description, element, &array));
  *out = driver().arrays.add(std::move(array));
  return CUDA_SUCCESS;
}

// Destroying waits for work that may use the memory, as cuMemFree does.
void wait_for_users(CUcontext handle) {
  if (ContextPointer context = driver().contexts.find(handle)) driver().wait_for(*context);
}

CUresult destroy(CUarray handle) {
  ROTA_SIM_CONTEXT(context);
  std::shared_ptr<Array> array = driver().arrays.find(handle);
  if (!array || array->level) return CUDA_ERROR_INVALID_HANDLE;
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  wait_for_users(array->context);
  if (!driver().arrays.remove(handle)) return CUDA_ERROR_INVALID_HANDLE;
  if (!mutated(Mutation::arrays_keep_their_memory)) {
    array->release();
  } else {
    array->charged = 0;
  }
  return CUDA_SUCCESS;
}

CUresult describe(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray handle) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Array> array = driver().arrays.find(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  *out = array->description;
  return CUDA_SUCCESS;
}

CUDA_ARRAY3D_DESCRIPTOR level_of(CUDA_ARRAY3D_DESCRIPTOR d, unsigned level) {
  if (mutated(Mutation::levels_do_not_shrink)) return d;
  auto halve = [level](size_t extent) { return extent == 0 ? 0 : std::max<size_t>(extent >> level, 1); };
  d.Width = halve(d.Width);
  d.Height = halve(d.Height);
  bool layers = (d.Flags & (kLayered | kCubemap)) != 0 && !mutated(Mutation::levels_lose_layers);
  if (!layers) d.Depth = halve(d.Depth);
  return d;
}

CUresult create_mipmapped(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* description, unsigned levels) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || description == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned element = 0;
  ROTA_SIM_CHECK(check(*description, true, &element));
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  bool layers = (description->Flags & (kLayered | kCubemap)) != 0;
  size_t largest = std::max({description->Width, description->Height, layers ? 0 : description->Depth});
  unsigned most = 1;
  while (largest >> most != 0) ++most;
  levels = std::clamp(levels, 1U, most);
  auto mipmap = std::make_shared<MipmappedArray>();
  mipmap->description = *description;
  mipmap->context = context->handle();
  for (unsigned level = 0; level < levels; ++level) {
    std::shared_ptr<Array> array;
    ROTA_SIM_CHECK(allocate(*context, level_of(*description, level), element, &array));
    array->level = true;
    mipmap->levels.push_back(std::move(array));
  }
  for (const auto& level : mipmap->levels) driver().arrays.add(level);
  *out = driver().mipmapped_arrays.add(std::move(mipmap));
  return CUDA_SUCCESS;
}

CUresult destroy_mipmapped(CUmipmappedArray handle) {
  ROTA_SIM_CONTEXT(context);
  auto mipmap = driver().mipmapped_arrays.find(handle);
  if (!mipmap) return CUDA_ERROR_INVALID_HANDLE;
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  wait_for_users(mipmap->context);
  if (!driver().mipmapped_arrays.remove(handle)) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& level : mipmap->levels) {
    driver().arrays.remove(level->handle());
    level->release();
  }
  return CUDA_SUCCESS;
}

// Only arrays with deferred mapping have requirements.
CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, unsigned flags, uint64_t bytes, CUdevice device) {
  if (out == nullptr || (flags & kDeferred) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= driver().state().gpus()) return CUDA_ERROR_INVALID_DEVICE;
  *out = CUDA_ARRAY_MEMORY_REQUIREMENTS{};
  out->size = round_up(bytes, kAlignment);
  out->alignment = kAlignment;
  return CUDA_SUCCESS;
}

}  // namespace

ROTA_SIM_EXPORT(cuArrayCreate_v2)(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* description) {
  ROTA_SIM_READY();
  if (out == nullptr || description == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR full{};
  full.Width = description->Width;
  full.Height = description->Height;
  full.Format = description->Format;
  full.NumChannels = description->NumChannels;
  return create(out, full);
}
ROTA_SIM_EXPORT(cuArray3DCreate_v2)(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* description) {
  ROTA_SIM_READY();
  if (out == nullptr || description == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return create(out, *description);
}
ROTA_SIM_EXPORT(cuArrayDestroy)(CUarray array) {
  return destroy(array);
}
ROTA_SIM_EXPORT(cuArrayGetDescriptor_v2)(CUDA_ARRAY_DESCRIPTOR* out, CUarray array) {
  ROTA_SIM_READY();
  CUDA_ARRAY3D_DESCRIPTOR full{};
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(describe(&full, array));
  out->Width = full.Width;
  out->Height = full.Height;
  out->Format = full.Format;
  out->NumChannels = full.NumChannels;
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuArray3DGetDescriptor_v2)(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray array) {
  return describe(out, array);
}
ROTA_SIM_EXPORT(cuArrayGetPlane)(CUarray* out, CUarray handle, unsigned) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // No simulated format has planes.
  return driver().arrays.find(handle) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}
ROTA_SIM_EXPORT(cuArrayGetSparseProperties)(CUDA_ARRAY_SPARSE_PROPERTIES* out, CUarray handle) {
  ROTA_SIM_READY();
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return driver().arrays.find(handle) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;  // none is sparse
}
ROTA_SIM_EXPORT(cuMipmappedArrayGetSparseProperties)(CUDA_ARRAY_SPARSE_PROPERTIES* out, CUmipmappedArray handle) {
  ROTA_SIM_READY();
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return driver().mipmapped_arrays.find(handle) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}
ROTA_SIM_EXPORT(cuArrayGetMemoryRequirements)
(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUarray handle, CUdevice device) {
  ROTA_SIM_READY();
  std::shared_ptr<Array> array = driver().arrays.find(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  return requirements(out, array->description.Flags, bytes_of(*array), device);
}
ROTA_SIM_EXPORT(cuMipmappedArrayGetMemoryRequirements)
(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUmipmappedArray handle, CUdevice device) {
  ROTA_SIM_READY();
  auto mipmap = driver().mipmapped_arrays.find(handle);
  if (!mipmap) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t bytes = 0;
  for (const auto& level : mipmap->levels) bytes += bytes_of(*level);
  return requirements(out, mipmap->description.Flags, bytes, device);
}
ROTA_SIM_EXPORT(cuMipmappedArrayCreate)
(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* description, unsigned levels) {
  return create_mipmapped(out, description, levels);
}
ROTA_SIM_EXPORT(cuMipmappedArrayGetLevel)(CUarray* out, CUmipmappedArray handle, unsigned level) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto mipmap = driver().mipmapped_arrays.find(handle);
  if (!mipmap) return CUDA_ERROR_INVALID_HANDLE;
  if (level >= mipmap->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *out = mipmap->levels[level]->handle();
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuMipmappedArrayDestroy)(CUmipmappedArray mipmap) {
  return destroy_mipmapped(mipmap);
}
