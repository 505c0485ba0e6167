// Copies of rectangles and boxes.
#include "tests/simgpu/conformance/conformance.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;

CUDA_MEMCPY2D to_device(CUdeviceptr to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                        size_t height) {
  CUDA_MEMCPY2D copy{};
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = to;
  copy.dstPitch = to_pitch;
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from;
  copy.srcPitch = from_pitch;
  copy.WidthInBytes = width;
  copy.Height = height;
  return copy;
}

std::vector<unsigned char> pattern(size_t bytes) {
  std::vector<unsigned char> values(bytes);
  for (size_t index = 0; index < bytes; ++index) values[index] = static_cast<unsigned char>(index * 7 + 1);
  return values;
}

// Device memory that is all zero.
struct Zeroed : Buffer {
  explicit Zeroed(size_t bytes) : Buffer(bytes) {
    CHECK_OK(cu.cuMemsetD8_v2(address(), 0, bytes));
    CHECK_OK(cu.cuCtxSynchronize());
  }
};

CUDA_MEMCPY3D box(CUdeviceptr to, const void* from, size_t width, size_t height, size_t depth) {
  CUDA_MEMCPY3D copy{};
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = to;
  copy.dstPitch = width;
  copy.dstHeight = height;
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from;
  copy.srcPitch = width;
  copy.srcHeight = height;
  copy.WidthInBytes = width;
  copy.Height = height;
  copy.Depth = depth;
  return copy;
}

void check_rectangle(CUresult (*function)(const CUDA_MEMCPY2D*)) {
  Zeroed buffer(512 * 8);
  std::vector<unsigned char> source = pattern(100 * 8);
  CUDA_MEMCPY2D copy = to_device(buffer, 512, source.data(), 100, 60, 8);
  CHECK_OK(function(&copy));
  std::vector<unsigned char> bytes = buffer.read<unsigned char>(512 * 8);
  for (size_t row = 0; row < 8; ++row) {
    for (size_t x = 0; x < 512; ++x) CHECK_EQ(+bytes[row * 512 + x], x < 60 ? +source[row * 100 + x] : 0);
  }
}

}  // namespace

RULE(copies, rectangles_have_pitches, "copy_ignores_pitch",
     "cuMemcpy2D writes each row a pitch after the one before, and nothing between rows") {
  Session session;
  check_rectangle(cu.cuMemcpy2D_v2);
}

RULE(copies, unaligned_rectangles, "idle:cuMemcpy2DUnaligned_v2", "cuMemcpy2DUnaligned copies as cuMemcpy2D does") {
  Session session;
  check_rectangle(cu.cuMemcpy2DUnaligned_v2);
}

RULE(copies, rectangles_have_offsets, "copy_ignores_offsets",
     "cuMemcpy2D starts on each side at its row and byte offset") {
  Session session;
  Zeroed buffer(512 * 8);
  std::vector<unsigned char> source = pattern(100 * 8);
  CUDA_MEMCPY2D copy = to_device(buffer, 512, source.data(), 100, 10, 2);
  copy.srcXInBytes = 20;
  copy.srcY = 3;
  copy.dstXInBytes = 40;
  copy.dstY = 5;
  CHECK_OK(cu.cuMemcpy2D_v2(&copy));
  std::vector<unsigned char> bytes = buffer.read<unsigned char>(512 * 8);
  CHECK_EQ(+bytes[5 * 512 + 40], +source[3 * 100 + 20]);
  CHECK_EQ(+bytes[6 * 512 + 49], +source[4 * 100 + 29]);
  CHECK_EQ(+bytes[0], 0);
  CHECK_EQ(+bytes[6 * 512 + 50], 0);
}

RULE(copies, rectangles_asynchronously, "idle:cuMemcpy2DAsync_v2", "cuMemcpy2DAsync copies in its stream") {
  Session session;
  Zeroed buffer(512 * 4);
  Pinned pinned(400);
  Stream stream;
  for (unsigned index = 0; index < 400; ++index) pinned.data<unsigned char>()[index] = 5;
  CUDA_MEMCPY2D copy = to_device(buffer, 512, pinned.data(), 100, 100, 4);
  CHECK_OK(cu.cuMemcpy2DAsync_v2(&copy, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  std::vector<unsigned char> bytes = buffer.read<unsigned char>(512 * 4);
  CHECK_EQ(+bytes[3 * 512 + 99], 5);
  CHECK_EQ(+bytes[3 * 512 + 100], 0);
}

RULE(copies, rectangles_wider_than_the_pitch_are_refused, "lenient:cuMemcpy2D_v2",
     "cuMemcpy2D with a pitch smaller than offset and width answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Zeroed buffer(kMiB);
  std::vector<unsigned char> source(4096);
  CUDA_MEMCPY2D copy = to_device(buffer, 512, source.data(), 64, 100, 4);
  CHECK_EQ(cu.cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
  copy = to_device(buffer, 512, source.data(), 100, 100, 4);
  copy.srcXInBytes = 50;
  CHECK_EQ(cu.cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
}

RULE(copies, rectangles_of_unknown_memory_are_refused, "lenient:cuMemcpy2D_v2",
     "cuMemcpy2D with a memory type that does not exist answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Zeroed buffer(4096);
  std::vector<unsigned char> source(4096);
  CUDA_MEMCPY2D copy = to_device(buffer, 512, source.data(), 100, 100, 4);
  copy.srcMemoryType = static_cast<CUmemorytype>(9);
  CHECK_EQ(cu.cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
}

RULE(copies, rectangles_of_no_rows, "refuse:cuMemcpy2D_v2", "cuMemcpy2D of 0 rows succeeds") {
  Session session;
  Zeroed buffer(4096);
  std::vector<unsigned char> source(4096);
  CUDA_MEMCPY2D copy = to_device(buffer, 512, source.data(), 100, 100, 0);
  CHECK_OK(cu.cuMemcpy2D_v2(&copy));
}

RULE(copies, unified_sides, "idle:cuMemcpy2D_v2",
     "a side of memory type UNIFIED is found by its address, on the host and on the device") {
  Session session;
  Zeroed buffer(512 * 4);
  std::vector<unsigned char> source = pattern(400);
  CUDA_MEMCPY2D copy = to_device(buffer, 512, nullptr, 100, 100, 4);
  copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = reinterpret_cast<CUdeviceptr>(source.data());
  copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  CHECK_OK(cu.cuMemcpy2D_v2(&copy));
  std::vector<unsigned char> bytes = buffer.read<unsigned char>(512 * 4);
  CHECK_EQ(+bytes[3 * 512 + 99], +source[399]);
}

RULE(copies, boxes_have_slices, "copy_forgets_slices", "cuMemcpy3D copies every slice of a box") {
  Session session;
  Zeroed buffer(64 * 4 * 3);
  std::vector<unsigned char> source = pattern(64 * 4 * 3);
  CUDA_MEMCPY3D copy = box(buffer, source.data(), 64, 4, 3);
  CHECK_OK(cu.cuMemcpy3D_v2(&copy));
  CHECK(buffer.read<unsigned char>(64 * 4 * 3) == source);
}

RULE(copies, boxes_have_heights, "copy_forgets_slices",
     "cuMemcpy3D finds a slice as many rows after the one before as its side's height says") {
  Session session;
  Zeroed buffer(64 * 8 * 2);
  std::vector<unsigned char> source = pattern(64 * 4 * 2);
  CUDA_MEMCPY3D copy = box(buffer, source.data(), 64, 4, 2);
  copy.dstHeight = 8;
  CHECK_OK(cu.cuMemcpy3D_v2(&copy));
  std::vector<unsigned char> bytes = buffer.read<unsigned char>(64 * 8 * 2);
  CHECK_EQ(+bytes[64 * 8], +source[64 * 4]);
  CHECK_EQ(+bytes[64 * 4], 0);
}

RULE(copies, boxes_have_offsets, "copy_ignores_offsets", "cuMemcpy3D starts at byte, row and slice offsets") {
  Session session;
  Zeroed buffer(64 * 4 * 3);
  std::vector<unsigned char> source = pattern(64 * 4 * 3);
  CUDA_MEMCPY3D copy = box(buffer, source.data(), 64, 4, 3);
  copy.WidthInBytes = 8;
  copy.Height = 1;
  copy.Depth = 1;
  copy.srcXInBytes = 4;
  copy.srcY = 1;
  copy.srcZ = 2;
  copy.dstXInBytes = 16;
  copy.dstY = 2;
  copy.dstZ = 1;
  CHECK_OK(cu.cuMemcpy3D_v2(&copy));
  std::vector<unsigned char> bytes = buffer.read<unsigned char>(64 * 4 * 3);
  CHECK_EQ(+bytes[(1 * 4 + 2) * 64 + 16], +source[(2 * 4 + 1) * 64 + 4]);
  CHECK_EQ(+bytes[0], 0);
}

RULE(copies, boxes_asynchronously, "idle:cuMemcpy3DAsync_v2", "cuMemcpy3DAsync copies in its stream") {
  Session session;
  Zeroed buffer(64 * 4 * 2);
  std::vector<unsigned char> source = pattern(64 * 4 * 2);
  Stream stream;
  CUDA_MEMCPY3D copy = box(buffer, source.data(), 64, 4, 2);
  CHECK_OK(cu.cuMemcpy3DAsync_v2(&copy, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK(buffer.read<unsigned char>(64 * 4 * 2) == source);
}

RULE(copies, boxes_higher_than_their_height_are_refused, "lenient:cuMemcpy3D_v2",
     "cuMemcpy3D of several slices with a height smaller than their rows answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Zeroed buffer(64 * 4 * 2);
  std::vector<unsigned char> source(64 * 4 * 2);
  CUDA_MEMCPY3D copy = box(buffer, source.data(), 64, 4, 2);
  copy.dstHeight = 2;
  CHECK_EQ(cu.cuMemcpy3D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
}

RULE(copies, boxes_between_contexts, "idle:cuMemcpy3DPeer",
     "cuMemcpy3DPeer copies a box between memory of two contexts") {
  Session session;
  Buffer from(64 * 4 * 2);
  Zeroed to(64 * 4 * 2);
  std::vector<unsigned char> source = pattern(64 * 4 * 2);
  from.write(source);
  CUDA_MEMCPY3D_PEER copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.srcContext = session.context();
  copy.srcPitch = 64;
  copy.srcHeight = 4;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = to;
  copy.dstContext = session.context();
  copy.dstPitch = 64;
  copy.dstHeight = 4;
  copy.WidthInBytes = 64;
  copy.Height = 4;
  copy.Depth = 2;
  CHECK_OK(cu.cuMemcpy3DPeer(&copy));
  CHECK_OK(cu.cuCtxSynchronize());
  CHECK(to.read<unsigned char>(64 * 4 * 2) == source);
}
