// Copies of the runtime API, each in two forms: for the legacy default stream and for the per-thread default stream.
#include "tools/simgpu/cudart/copy_parameters.h"
#include "tools/simgpu/cudart/forward.h"

using namespace rota::sim::cudart;  // NOLINT

namespace {

// The driver's functions for one form.
struct Legacy {
  static constexpr auto kAny = &Driver::cuMemcpy;
  static constexpr auto kUp = &Driver::cuMemcpyHtoD_v2;
  static constexpr auto kDown = &Driver::cuMemcpyDtoH_v2;
  static constexpr auto kAcross = &Driver::cuMemcpyDtoD_v2;
  static constexpr auto kAnyAsync = &Driver::cuMemcpyAsync;
  static constexpr auto kUpAsync = &Driver::cuMemcpyHtoDAsync_v2;
  static constexpr auto kDownAsync = &Driver::cuMemcpyDtoHAsync_v2;
  static constexpr auto kAcrossAsync = &Driver::cuMemcpyDtoDAsync_v2;
  static constexpr auto kRows = &Driver::cuMemcpy2DUnaligned_v2;
  static constexpr auto kRowsAsync = &Driver::cuMemcpy2DAsync_v2;
  static constexpr auto kBox = &Driver::cuMemcpy3D_v2;
  static constexpr auto kBoxAsync = &Driver::cuMemcpy3DAsync_v2;
  static constexpr auto kPeerBox = &Driver::cuMemcpy3DPeer;
  static constexpr auto kPeerBoxAsync = &Driver::cuMemcpy3DPeerAsync;
};
struct PerThread {
  static constexpr auto kAny = &Driver::cuMemcpy_ptds;
  static constexpr auto kUp = &Driver::cuMemcpyHtoD_v2_ptds;
  static constexpr auto kDown = &Driver::cuMemcpyDtoH_v2_ptds;
  static constexpr auto kAcross = &Driver::cuMemcpyDtoD_v2_ptds;
  static constexpr auto kAnyAsync = &Driver::cuMemcpyAsync_ptsz;
  static constexpr auto kUpAsync = &Driver::cuMemcpyHtoDAsync_v2_ptsz;
  static constexpr auto kDownAsync = &Driver::cuMemcpyDtoHAsync_v2_ptsz;
  static constexpr auto kAcrossAsync = &Driver::cuMemcpyDtoDAsync_v2_ptsz;
  static constexpr auto kRows = &Driver::cuMemcpy2DUnaligned_v2_ptds;
  static constexpr auto kRowsAsync = &Driver::cuMemcpy2DAsync_v2_ptsz;
  static constexpr auto kBox = &Driver::cuMemcpy3D_v2_ptds;
  static constexpr auto kBoxAsync = &Driver::cuMemcpy3DAsync_v2_ptsz;
  static constexpr auto kPeerBox = &Driver::cuMemcpy3DPeer_ptds;
  static constexpr auto kPeerBoxAsync = &Driver::cuMemcpy3DPeerAsync_ptsz;
};

template <class Form>
int copy(void* to, const void* from, size_t bytes, int kind) {
  switch (kind) {
    case 1:
      return call(Form::kUp, address(to), from, bytes);
    case 2:
      return call(Form::kDown, to, address(from), bytes);
    case 3:
      return call(Form::kAcross, address(to), address(from), bytes);
    case 0:
    case 4:
      return call(Form::kAny, address(to), address(from), bytes);
    default:
      return done(kInvalidMemcpyDirection);
  }
}
template <class Form>
int copy(void* to, const void* from, size_t bytes, int kind, CUstream stream) {
  switch (kind) {
    case 1:
      return call(Form::kUpAsync, address(to), from, bytes, stream);
    case 2:
      return call(Form::kDownAsync, to, address(from), bytes, stream);
    case 3:
      return call(Form::kAcrossAsync, address(to), address(from), bytes, stream);
    case 0:
    case 4:
      return call(Form::kAnyAsync, address(to), address(from), bytes, stream);
    default:
      return done(kInvalidMemcpyDirection);
  }
}

// One side of a two-dimensional copy: memory with a pitch, or an array and a position in it.
struct Side {
  void* memory;
  size_t pitch;
  CUarray array;
  size_t x, y;
};
Side memory(const void* pointer, size_t pitch) {
  return {const_cast<void*>(pointer), pitch, nullptr, 0, 0};
}
Side array(CUarray handle, size_t x, size_t y) {
  return {nullptr, 0, handle, x, y};
}

// No stream: the copy is complete when the call returns. Widths in bytes.
template <class Form, class... Stream>
int copy_rows(const Side& to, const Side& from, size_t width, size_t height, int kind, Stream... stream) {
  CUmemorytype source{};
  CUmemorytype target{};
  if (!memory_types(kind, &source, &target)) return done(kInvalidMemcpyDirection);
  if ((to.array == nullptr && width > to.pitch) || (from.array == nullptr && width > from.pitch)) {
    return done(kInvalidPitchValue);
  }
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = from.array != nullptr ? CU_MEMORYTYPE_ARRAY : source;
  rows.srcHost = from.memory;
  rows.srcDevice = address(from.memory);
  rows.srcArray = from.array;
  rows.srcPitch = from.pitch;
  rows.srcXInBytes = from.x;
  rows.srcY = from.y;
  rows.dstMemoryType = to.array != nullptr ? CU_MEMORYTYPE_ARRAY : target;
  rows.dstHost = to.memory;
  rows.dstDevice = address(to.memory);
  rows.dstArray = to.array;
  rows.dstPitch = to.pitch;
  rows.dstXInBytes = to.x;
  rows.dstY = to.y;
  rows.WidthInBytes = width;
  rows.Height = height;
  const CUDA_MEMCPY2D* parameters = &rows;
  if constexpr (sizeof...(Stream) == 0) {
    return call(Form::kRows, parameters);
  } else {
    return call(Form::kRowsAsync, parameters, stream...);
  }
}

// By cudaMemcpy3DParms or cudaMemcpy3DPeerParms.
template <class DriverCopy, class Copy, class Member, class... Stream>
int copy_box(const Copy* box, Member member, Stream... stream) {
  if (box == nullptr) return done(kInvalidValue);
  if (int error = ensure_context(); error != kSuccess) return done(error);
  DriverCopy converted{};
  if (int error = to_driver(*box, &converted); error != kSuccess) return done(error);
  const DriverCopy* parameters = &converted;
  return call(member, parameters, stream...);
}

int contexts_of(int target_device, int source_device, CUcontext* target, CUcontext* source) {
  if (int error = primary_context(target_device, target); error != kSuccess) return error;
  return primary_context(source_device, source);
}

// The address of a part of a device variable.
int part_of(const void* symbol, size_t offset, size_t bytes, void** where) {
  CUdeviceptr begin = 0;
  size_t size = 0;
  if (int error = variable_of(symbol, &begin, &size); error != kSuccess) return error;
  if (offset > size || bytes > size - offset) return kInvalidValue;
  *where = reinterpret_cast<void*>(begin + offset);
  return kSuccess;
}
bool goes_to_device(int kind) {
  return kind == 1 || kind == 3 || kind == 4;
}
bool comes_from_device(int kind) {
  return kind == 2 || kind == 3 || kind == 4;
}
template <class Form, class... Stream>
int copy_to_symbol(const void* symbol, const void* from, size_t bytes, size_t offset, int kind, Stream... stream) {
  void* to = nullptr;
  if (!goes_to_device(kind)) return done(kInvalidMemcpyDirection);
  if (int error = part_of(symbol, offset, bytes, &to); error != kSuccess) return done(error);
  return copy<Form>(to, from, bytes, kind, stream...);
}
template <class Form, class... Stream>
int copy_from_symbol(void* to, const void* symbol, size_t bytes, size_t offset, int kind, Stream... stream) {
  void* from = nullptr;
  if (!comes_from_device(kind)) return done(kInvalidMemcpyDirection);
  if (int error = part_of(symbol, offset, bytes, &from); error != kSuccess) return done(error);
  return copy<Form>(to, from, bytes, kind, stream...);
}

}  // namespace

#define ROTA_COPIES(ptds, ptsz, Form)                                                                                 \
  ROTA_CUDART_EXPORT int cudaMemcpy##ptds(void* to, const void* from, size_t bytes, int kind) {                       \
    return copy<Form>(to, from, bytes, kind);                                                                         \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpyAsync##ptsz(void* to, const void* from, size_t bytes, int kind, CUstream stream) { \
    return copy<Form>(to, from, bytes, kind, stream);                                                                 \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpyToSymbol##ptds(const void* symbol, const void* from, size_t bytes, size_t offset,  \
                                                  int kind) {                                                         \
    return copy_to_symbol<Form>(symbol, from, bytes, offset, kind);                                                   \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpyToSymbolAsync##ptsz(const void* symbol, const void* from, size_t bytes,            \
                                                       size_t offset, int kind, CUstream stream) {                    \
    return copy_to_symbol<Form>(symbol, from, bytes, offset, kind, stream);                                           \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpyFromSymbol##ptds(void* to, const void* symbol, size_t bytes, size_t offset,        \
                                                    int kind) {                                                       \
    return copy_from_symbol<Form>(to, symbol, bytes, offset, kind);                                                   \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpyFromSymbolAsync##ptsz(void* to, const void* symbol, size_t bytes, size_t offset,   \
                                                         int kind, CUstream stream) {                                 \
    return copy_from_symbol<Form>(to, symbol, bytes, offset, kind, stream);                                           \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpy2D##ptds(void* to, size_t to_pitch, const void* from, size_t from_pitch,           \
                                            size_t width, size_t height, int kind) {                                  \
    return copy_rows<Form>(memory(to, to_pitch), memory(from, from_pitch), width, height, kind);                      \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpy2DAsync##ptsz(void* to, size_t to_pitch, const void* from, size_t from_pitch,      \
                                                 size_t width, size_t height, int kind, CUstream stream) {            \
    return copy_rows<Form>(memory(to, to_pitch), memory(from, from_pitch), width, height, kind, stream);              \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpy2DToArray##ptds(CUarray to, size_t x, size_t y, const void* from, size_t pitch,    \
                                                   size_t width, size_t height, int kind) {                           \
    return copy_rows<Form>(array(to, x, y), memory(from, pitch), width, height, kind);                                \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpy2DToArrayAsync##ptsz(CUarray to, size_t x, size_t y, const void* from,             \
                                                        size_t pitch, size_t width, size_t height, int kind,          \
                                                        CUstream stream) {                                            \
    return copy_rows<Form>(array(to, x, y), memory(from, pitch), width, height, kind, stream);                        \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpy2DFromArray##ptds(void* to, size_t pitch, CUarray from, size_t x, size_t y,        \
                                                     size_t width, size_t height, int kind) {                         \
    return copy_rows<Form>(memory(to, pitch), array(from, x, y), width, height, kind);                                \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpy2DFromArrayAsync##ptsz(void* to, size_t pitch, CUarray from, size_t x, size_t y,   \
                                                          size_t width, size_t height, int kind, CUstream stream) {   \
    return copy_rows<Form>(memory(to, pitch), array(from, x, y), width, height, kind, stream);                        \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpy2DArrayToArray##ptds(CUarray to, size_t to_x, size_t to_y, CUarray from,           \
                                                        size_t from_x, size_t from_y, size_t width, size_t height,    \
                                                        int kind) {                                                   \
    return copy_rows<Form>(array(to, to_x, to_y), array(from, from_x, from_y), width, height, kind);                  \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpy3D##ptds(const Copy3D* box) {                                                      \
    return copy_box<CUDA_MEMCPY3D>(box, Form::kBox);                                                                  \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpy3DAsync##ptsz(const Copy3D* box, CUstream stream) {                                \
    return copy_box<CUDA_MEMCPY3D>(box, Form::kBoxAsync, stream);                                                     \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpy3DPeer##ptds(const PeerCopy3D* box) {                                              \
    return copy_box<CUDA_MEMCPY3D_PEER>(box, Form::kPeerBox);                                                         \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaMemcpy3DPeerAsync##ptsz(const PeerCopy3D* box, CUstream stream) {                        \
    return copy_box<CUDA_MEMCPY3D_PEER>(box, Form::kPeerBoxAsync, stream);                                            \
  }
ROTA_COPIES(, , Legacy)
ROTA_COPIES(_ptds, _ptsz, PerThread)

ROTA_CUDART_EXPORT int cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  CUcontext target = nullptr;
  CUcontext source = nullptr;
  if (int error = contexts_of(to_device, from_device, &target, &source); error != kSuccess) return done(error);
  return call(&Driver::cuMemcpyPeer, address(to), target, address(from), source, bytes);
}
ROTA_CUDART_EXPORT int cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                           CUstream stream) {
  CUcontext target = nullptr;
  CUcontext source = nullptr;
  if (int error = contexts_of(to_device, from_device, &target, &source); error != kSuccess) return done(error);
  return call(&Driver::cuMemcpyPeerAsync, address(to), target, address(from), source, bytes, stream);
}

ROTA_FORWARD(8, cudaMemcpyBatchAsync, cuMemcpyBatchAsync_v2)
ROTA_FORWARD(8, cudaMemcpyBatchAsync_ptsz, cuMemcpyBatchAsync_v2_ptsz)
ROTA_FORWARD(4, cudaMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_v2)
ROTA_FORWARD(4, cudaMemcpy3DBatchAsync_ptsz, cuMemcpy3DBatchAsync_v2_ptsz)
