// Converts between the runtime's and the driver's descriptions of copies and arrays.
#include "tools/simgpu/cudart/copy_parameters.h"

namespace rota::sim::cudart {
namespace {

constexpr int kInvalidChannelDescriptor = 20;

struct Format {
  CUarray_format format;
  unsigned kind;  // cudaChannelFormatKind: 0 signed, 1 unsigned, 2 float
  int bits;
};
constexpr Format kFormats[] = {
    {CU_AD_FORMAT_UNSIGNED_INT8, 1, 8}, {CU_AD_FORMAT_UNSIGNED_INT16, 1, 16}, {CU_AD_FORMAT_UNSIGNED_INT32, 1, 32},
    {CU_AD_FORMAT_SIGNED_INT8, 0, 8},   {CU_AD_FORMAT_SIGNED_INT16, 0, 16},   {CU_AD_FORMAT_SIGNED_INT32, 0, 32},
    {CU_AD_FORMAT_HALF, 2, 16},         {CU_AD_FORMAT_FLOAT, 2, 32},
};

int element_bytes(CUarray array, size_t* bytes) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  if (int error = attempt(&Driver::cuArray3DGetDescriptor_v2, &descriptor, array); error != kSuccess) return error;
  for (const Format& format : kFormats) {
    if (format.format == descriptor.Format) {
      *bytes = static_cast<size_t>(format.bits) / 8 * descriptor.NumChannels;
      return kSuccess;
    }
  }
  return kNotSupported;
}

// The parameters that are specific to neither side of a CUDA_MEMCPY3D or its peer form.
template <class Copy, class Out>
int fill(const Copy& copy, CUmemorytype source_type, CUmemorytype target_type, Out* out) {
  *out = {};
  size_t element = 1;  // positions and extents are in elements if an array takes part, otherwise in bytes
  if ((copy.source_array != nullptr) == (copy.source.memory != nullptr)) return kInvalidValue;
  if ((copy.target_array != nullptr) == (copy.target.memory != nullptr)) return kInvalidValue;
  size_t source_element = 1;
  size_t target_element = 1;
  if (copy.source_array != nullptr) {
    if (int error = element_bytes(copy.source_array, &source_element); error != kSuccess) return error;
    element = source_element;
  }
  if (copy.target_array != nullptr) {
    if (int error = element_bytes(copy.target_array, &target_element); error != kSuccess) return error;
    if (copy.source_array != nullptr && target_element != source_element) return kInvalidValue;
    element = target_element;
  }
  out->srcMemoryType = copy.source_array != nullptr ? CU_MEMORYTYPE_ARRAY : source_type;
  out->srcArray = copy.source_array;
  out->srcHost = copy.source.memory;
  out->srcDevice = address(copy.source.memory);
  out->srcPitch = copy.source.pitch;
  out->srcHeight = copy.source.height;
  out->srcXInBytes = copy.source_position.x * source_element;
  out->srcY = copy.source_position.y;
  out->srcZ = copy.source_position.z;
  out->dstMemoryType = copy.target_array != nullptr ? CU_MEMORYTYPE_ARRAY : target_type;
  out->dstArray = copy.target_array;
  out->dstHost = copy.target.memory;
  out->dstDevice = address(copy.target.memory);
  out->dstPitch = copy.target.pitch;
  out->dstHeight = copy.target.height;
  out->dstXInBytes = copy.target_position.x * target_element;
  out->dstY = copy.target_position.y;
  out->dstZ = copy.target_position.z;
  if (__builtin_mul_overflow(copy.extent.width, element, &out->WidthInBytes)) return kInvalidValue;
  out->Height = copy.extent.height;
  out->Depth = copy.extent.depth;
  return kSuccess;
}

int kind_of(CUmemorytype source, CUmemorytype target) {
  if (source == CU_MEMORYTYPE_UNIFIED || target == CU_MEMORYTYPE_UNIFIED) return 4;
  return (source == CU_MEMORYTYPE_HOST ? 0 : 2) + (target == CU_MEMORYTYPE_HOST ? 0 : 1);
}

}  // namespace

bool memory_types(int kind, CUmemorytype* source, CUmemorytype* target) {
  if (kind < 0 || kind > 4) return false;
  *source = kind == 4 ? CU_MEMORYTYPE_UNIFIED : kind == 2 || kind == 3 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  *target = kind == 4 ? CU_MEMORYTYPE_UNIFIED : kind == 1 || kind == 3 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  return true;
}

int to_driver(const Copy3D& copy, CUDA_MEMCPY3D* out) {
  CUmemorytype source{};
  CUmemorytype target{};
  if (!memory_types(copy.kind, &source, &target)) return kInvalidMemcpyDirection;
  return fill(copy, source, target, out);
}

int to_driver(const PeerCopy3D& copy, CUDA_MEMCPY3D_PEER* out) {
  if (int error = fill(copy, CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED, out); error != kSuccess) return error;
  if (int error = primary_context(copy.source_device, &out->srcContext); error != kSuccess) return error;
  return primary_context(copy.target_device, &out->dstContext);
}

int to_driver(void* target, const void* source, size_t bytes, int kind, CUDA_MEMCPY3D* out) {
  Copy3D copy{};
  copy.source = {const_cast<void*>(source), bytes, bytes, 1};
  copy.target = {target, bytes, bytes, 1};
  copy.extent = {bytes, 1, 1};
  copy.kind = kind;
  return to_driver(copy, out);
}

int from_driver(const CUDA_MEMCPY3D& copy, Copy3D* out) {
  *out = {};
  size_t source_element = 1;
  size_t target_element = 1;
  if (copy.srcMemoryType == CU_MEMORYTYPE_ARRAY) {
    out->source_array = copy.srcArray;
    if (int error = element_bytes(copy.srcArray, &source_element); error != kSuccess) return error;
  } else {
    void* memory = copy.srcMemoryType == CU_MEMORYTYPE_HOST ? const_cast<void*>(copy.srcHost)
                                                            : reinterpret_cast<void*>(copy.srcDevice);
    out->source = {memory, copy.srcPitch, copy.WidthInBytes, copy.srcHeight};
  }
  if (copy.dstMemoryType == CU_MEMORYTYPE_ARRAY) {
    out->target_array = copy.dstArray;
    if (int error = element_bytes(copy.dstArray, &target_element); error != kSuccess) return error;
  } else {
    void* memory = copy.dstMemoryType == CU_MEMORYTYPE_HOST ? copy.dstHost : reinterpret_cast<void*>(copy.dstDevice);
    out->target = {memory, copy.dstPitch, copy.WidthInBytes, copy.dstHeight};
  }
  out->source_position = {copy.srcXInBytes / source_element, copy.srcY, copy.srcZ};
  out->target_position = {copy.dstXInBytes / target_element, copy.dstY, copy.dstZ};
  size_t element = target_element != 1 ? target_element : source_element;
  out->extent = {copy.WidthInBytes / element, copy.Height, copy.Depth};
  out->kind = kind_of(copy.srcMemoryType, copy.dstMemoryType);
  return kSuccess;
}

int to_driver(const ChannelFormat& channels, CUarray_format* format, unsigned* count) {
  if (channels.kind > 2) return kNotSupported;  // normalised, compressed and planar formats are for textures
  const int bits[] = {channels.x, channels.y, channels.z, channels.w};
  unsigned used = 0;
  while (used < 4 && bits[used] != 0) ++used;
  for (unsigned i = 0; i < 4; ++i) {
    if (bits[i] != (i < used ? channels.x : 0)) return kInvalidChannelDescriptor;
  }
  if (used != 1 && used != 2 && used != 4) return kInvalidChannelDescriptor;
  for (const Format& known : kFormats) {
    if (known.kind == channels.kind && known.bits == channels.x) {
      *format = known.format;
      *count = used;
      return kSuccess;
    }
  }
  return kInvalidChannelDescriptor;
}

int from_driver(CUarray_format format, unsigned count, ChannelFormat* channels) {
  for (const Format& known : kFormats) {
    if (known.format != format) continue;
    *channels = {known.bits, count > 1 ? known.bits : 0, count > 2 ? known.bits : 0, count > 3 ? known.bits : 0,
                 known.kind};
    return kSuccess;
  }
  return kNotSupported;
}

}  // namespace rota::sim::cudart
