// Arrays and mipmapped arrays of the runtime API: memory of opaque layout. Textures and surfaces are not simulated.
#include "tools/simgpu/cudart/copy_parameters.h"
#include "tools/simgpu/cudart/forward.h"

using namespace rota::sim::cudart;  // NOLINT

namespace {

int describe(const ChannelFormat* channels, const Extent& extent, unsigned flags, CUDA_ARRAY3D_DESCRIPTOR* out) {
  if (channels == nullptr) return kInvalidValue;
  *out = {};
  out->Width = extent.width;
  out->Height = extent.height;
  out->Depth = extent.depth;
  out->Flags = flags;  // the runtime's numbers are the driver's
  return to_driver(*channels, &out->Format, &out->NumChannels);
}

int create_array(CUarray* out, const ChannelFormat* channels, const Extent& extent, unsigned flags) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor;
  if (out == nullptr) return done(kInvalidValue);
  if (int error = describe(channels, extent, flags, &descriptor); error != kSuccess) return done(error);
  const CUDA_ARRAY3D_DESCRIPTOR* parameters = &descriptor;
  return call(&Driver::cuArray3DCreate_v2, out, parameters);
}

}  // namespace

ROTA_CUDART_EXPORT ChannelFormat cudaCreateChannelDesc(int x, int y, int z, int w, unsigned kind) {
  return {x, y, z, w, kind};
}
ROTA_CUDART_EXPORT int cudaMallocArray(CUarray* out, const ChannelFormat* channels, size_t width, size_t height,
                                       unsigned flags) {
  return create_array(out, channels, {width, height, 0}, flags);
}
ROTA_CUDART_EXPORT int cudaMalloc3DArray(CUarray* out, const ChannelFormat* channels, Extent extent, unsigned flags) {
  return create_array(out, channels, extent, flags);
}
ROTA_CUDART_EXPORT int cudaFreeArray(CUarray array) {
  return array == nullptr ? done(ensure_context()) : call(&Driver::cuArrayDestroy, array);
}
ROTA_CUDART_EXPORT int cudaArrayGetInfo(ChannelFormat* channels, Extent* extent, unsigned* flags, CUarray array) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  if (int error = call(&Driver::cuArray3DGetDescriptor_v2, &descriptor, array); error != kSuccess) return error;
  if (extent != nullptr) *extent = {descriptor.Width, descriptor.Height, descriptor.Depth};
  if (flags != nullptr) *flags = descriptor.Flags;
  return channels == nullptr ? kSuccess : done(from_driver(descriptor.Format, descriptor.NumChannels, channels));
}
ROTA_CUDART_EXPORT int cudaGetChannelDesc(ChannelFormat* channels, CUarray array) {
  if (channels == nullptr) return done(kInvalidValue);
  return cudaArrayGetInfo(channels, nullptr, nullptr, array);
}
ROTA_CUDART_EXPORT int cudaMallocMipmappedArray(CUmipmappedArray* out, const ChannelFormat* channels, Extent extent,
                                                unsigned levels, unsigned flags) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor;
  if (out == nullptr) return done(kInvalidValue);
  if (int error = describe(channels, extent, flags, &descriptor); error != kSuccess) return done(error);
  const CUDA_ARRAY3D_DESCRIPTOR* parameters = &descriptor;
  return call(&Driver::cuMipmappedArrayCreate, out, parameters, levels);
}
ROTA_CUDART_EXPORT int cudaFreeMipmappedArray(CUmipmappedArray array) {
  return array == nullptr ? done(ensure_context()) : call(&Driver::cuMipmappedArrayDestroy, array);
}
ROTA_FORWARD(3, cudaGetMipmappedArrayLevel, cuMipmappedArrayGetLevel)
ROTA_FORWARD(3, cudaArrayGetPlane, cuArrayGetPlane)
ROTA_FORWARD(3, cudaArrayGetMemoryRequirements, cuArrayGetMemoryRequirements)
ROTA_FORWARD(3, cudaMipmappedArrayGetMemoryRequirements, cuMipmappedArrayGetMemoryRequirements)
ROTA_FORWARD(2, cudaArrayGetSparseProperties, cuArrayGetSparseProperties)
ROTA_FORWARD(2, cudaMipmappedArrayGetSparseProperties, cuMipmappedArrayGetSparseProperties)

ROTA_CUDART_EXPORT int cudaDeviceGetTexture1DLinearMaxWidth(size_t* width, const ChannelFormat* channels, int device) {
  if (width == nullptr || channels == nullptr) return done(kInvalidValue);
  CUarray_format format{};
  unsigned count = 0;
  if (int error = to_driver(*channels, &format, &count); error != kSuccess) return done(error);
  return call(&Driver::cuDeviceGetTexture1DLinearMaxWidth, width, format, count, device);
}
