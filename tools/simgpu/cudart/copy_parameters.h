// Boxes, arrays and copies in the runtime's and in the driver's form.
#pragma once

#include "tools/simgpu/cudart/runtime.h"

namespace rota::sim::cudart {

struct Extent {  // cudaExtent
  size_t width, height, depth;
};
struct Position {  // cudaPos
  size_t x, y, z;
};
struct PitchedPointer {  // cudaPitchedPtr
  void* memory;
  size_t pitch, width, height;
};
struct Copy3D {  // cudaMemcpy3DParms
  CUarray source_array;
  Position source_position;
  PitchedPointer source;
  CUarray target_array;
  Position target_position;
  PitchedPointer target;
  Extent extent;
  int kind;
};
static_assert(sizeof(Copy3D) == 160);
struct PeerCopy3D {  // cudaMemcpy3DPeerParms
  CUarray source_array;
  Position source_position;
  PitchedPointer source;
  int source_device;
  CUarray target_array;
  Position target_position;
  PitchedPointer target;
  int target_device;
  Extent extent;
};
static_assert(sizeof(PeerCopy3D) == 168);
struct ChannelFormat {  // cudaChannelFormatDesc; bits of each channel
  int x, y, z, w;
  unsigned kind;
};

// Both need a context, for the element sizes of arrays.
int to_driver(const Copy3D& copy, CUDA_MEMCPY3D* out);
int to_driver(const PeerCopy3D& copy, CUDA_MEMCPY3D_PEER* out);
int from_driver(const CUDA_MEMCPY3D& copy, Copy3D* out);

// Bytes in a row, as a copy of one row.
int to_driver(void* target, const void* source, size_t bytes, int kind, CUDA_MEMCPY3D* out);

int to_driver(const ChannelFormat& channels, CUarray_format* format, unsigned* count);
int from_driver(CUarray_format format, unsigned count, ChannelFormat* channels);

}  // namespace rota::sim::cudart
