// Copies to and from arrays.
#include "tests/simgpu/conformance/arrays.h"

namespace {

std::vector<unsigned> counting(size_t count, unsigned first) {
  std::vector<unsigned> values(count);
  for (size_t index = 0; index < count; ++index) values[index] = first + static_cast<unsigned>(index);
  return values;
}

// A copy of a whole box of words between the host and an array.
CUDA_MEMCPY3D box(size_t width, size_t height, size_t depth) {
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = width * 4;
  copy.Height = height;
  copy.Depth = depth;
  return copy;
}
void write(CUarray array, const std::vector<unsigned>& values, size_t width, size_t height, size_t depth) {
  CUDA_MEMCPY3D copy = box(width, height, depth);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = values.data();
  copy.srcPitch = width * 4;
  copy.srcHeight = height;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  CHECK_OK(cu.cuMemcpy3D_v2(&copy));
}
std::vector<unsigned> read(CUarray array, size_t width, size_t height, size_t depth) {
  std::vector<unsigned> values(width * height * depth);
  CUDA_MEMCPY3D copy = box(width, height, depth);
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = values.data();
  copy.dstPitch = width * 4;
  copy.dstHeight = height;
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  CHECK_OK(cu.cuMemcpy3D_v2(&copy));
  return values;
}

CUDA_MEMCPY2D rectangle_to(CUarray array, const void* from, size_t width, size_t height) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from;
  copy.srcPitch = width;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = width;
  copy.Height = height;
  return copy;
}

}  // namespace

RULE(arrays, host_to_array_and_back, "idle:cuMemcpyHtoA_v2",
     "what cuMemcpyHtoA writes into a one-dimensional array cuMemcpyAtoH reads at the same byte offset") {
  Session session;
  Array array(described(256, 0, 0));
  write(array, std::vector<unsigned>(256), 256, 1, 1);
  std::vector<unsigned> values = counting(64, 3);
  std::vector<unsigned> back(64);
  CHECK_OK(cu.cuMemcpyHtoA_v2(array, 128, values.data(), 256));
  CHECK_OK(cu.cuMemcpyAtoH_v2(back.data(), array, 128, 256));
  CHECK(back == values);
  std::vector<unsigned> all = read(array, 256, 1, 1);
  CHECK_EQ(all[32], 3);
  CHECK_EQ(all[31], 0);
}

RULE(arrays, host_to_array_in_a_stream, "idle:cuMemcpyHtoAAsync_v2",
     "cuMemcpyHtoAAsync and cuMemcpyAtoHAsync copy in their stream") {
  Session session;
  Array array(described(64, 0, 0));
  write(array, std::vector<unsigned>(64), 64, 1, 1);
  std::vector<unsigned> values = counting(64, 9);
  std::vector<unsigned> back(64);
  Stream stream;
  CHECK_OK(cu.cuMemcpyHtoAAsync_v2(array, 0, values.data(), 256, stream));
  CHECK_OK(cu.cuMemcpyAtoHAsync_v2(back.data(), array, 0, 256, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK(back == values);
}

RULE(arrays, device_to_array_and_back, "idle:cuMemcpyDtoA_v2",
     "cuMemcpyDtoA and cuMemcpyAtoD copy between device memory and a one-dimensional array") {
  Session session;
  Array array(described(64, 0, 0));
  Buffer from(256);
  Buffer to(256);
  from.write(counting(64, 21));
  write(array, std::vector<unsigned>(64), 64, 1, 1);
  CHECK_OK(cu.cuMemcpyDtoA_v2(array, 0, from, 256));
  CHECK_OK(cu.cuMemcpyAtoD_v2(to, array, 0, 256));
  CHECK(to.read<unsigned>(64) == counting(64, 21));
}

RULE(arrays, array_to_array, "idle:cuMemcpyAtoA_v2", "cuMemcpyAtoA copies between one-dimensional arrays") {
  Session session;
  Array from(described(64, 0, 0));
  Array to(described(64, 0, 0));
  write(from, counting(64, 1), 64, 1, 1);
  write(to, std::vector<unsigned>(64), 64, 1, 1);
  CHECK_OK(cu.cuMemcpyAtoA_v2(to, 128, from, 0, 128));
  std::vector<unsigned> values = read(to, 64, 1, 1);
  CHECK_EQ(values[32], 1);
  CHECK_EQ(values[63], 32);
  CHECK_EQ(values[0], 0);
}

RULE(arrays, rectangles_of_arrays, "copy_ignores_offsets",
     "cuMemcpy2D writes a rectangle into an array at its byte and row offset") {
  Session session;
  Array array(described(32, 16, 0));
  write(array, std::vector<unsigned>(32 * 16), 32, 16, 1);
  std::vector<unsigned> values = counting(4 * 2, 5);
  CUDA_MEMCPY2D copy = rectangle_to(array, values.data(), 16, 2);
  copy.dstXInBytes = 8;
  copy.dstY = 3;
  CHECK_OK(cu.cuMemcpy2D_v2(&copy));
  std::vector<unsigned> all = read(array, 32, 16, 1);
  CHECK_EQ(all[3 * 32 + 2], 5);
  CHECK_EQ(all[4 * 32 + 5], 12);
  CHECK_EQ(all[0], 0);
}

RULE(arrays, rectangles_beyond_the_array_are_refused, "lenient:cuMemcpy2D_v2",
     "a rectangle that does not fit into the array is refused with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Array array(described(32, 16, 0));
  std::vector<unsigned> values(32 * 32);
  CUDA_MEMCPY2D copy = rectangle_to(array, values.data(), 128, 17);
  CHECK_EQ(cu.cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
  copy = rectangle_to(array, values.data(), 128, 4);
  copy.dstXInBytes = 4;
  CHECK_EQ(cu.cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
}

RULE(arrays, boxes_of_arrays, "copy_forgets_slices", "cuMemcpy3D writes and reads every slice of an array") {
  Session session;
  Array array(described(16, 8, 4));
  write(array, counting(16 * 8 * 4, 100), 16, 8, 4);
  CHECK(read(array, 16, 8, 4) == counting(16 * 8 * 4, 100));
}

RULE(arrays, one_slice_of_an_array, "copy_ignores_offsets", "a copy into one slice of an array changes no other") {
  Session session;
  Array array(described(16, 8, 4));
  write(array, std::vector<unsigned>(16 * 8 * 4), 16, 8, 4);
  std::vector<unsigned> values = counting(16 * 8, 1);
  CUDA_MEMCPY3D copy = box(16, 8, 1);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = values.data();
  copy.srcPitch = 64;
  copy.srcHeight = 8;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.dstZ = 2;
  CHECK_OK(cu.cuMemcpy3D_v2(&copy));
  std::vector<unsigned> all = read(array, 16, 8, 4);
  CHECK_EQ(all[2 * 128], 1);
  CHECK_EQ(all[3 * 128 - 1], 128);
  CHECK_EQ(all[0], 0);
  CHECK_EQ(all[3 * 128], 0);
}

RULE(arrays, levels_are_arrays, "copy_ignores_pitch", "a level of a mipmapped array can be written and read") {
  Session session;
  Mipmap mipmap(described(32, 32, 0), 3);
  write(mipmap.level(0), std::vector<unsigned>(32 * 32), 32, 32, 1);
  std::vector<unsigned> values = counting(16 * 8, 7);
  CUDA_MEMCPY2D copy = rectangle_to(mipmap.level(1), values.data(), 64, 8);
  CHECK_OK(cu.cuMemcpy2D_v2(&copy));
  CHECK(read(mipmap.level(1), 16, 8, 1) == values);
  // A column of it: rows of the array are further apart than what is copied.
  std::vector<unsigned> column(8 * 4);
  CUDA_MEMCPY3D part = box(1, 8, 1);
  part.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  part.srcArray = mipmap.level(1);
  part.dstMemoryType = CU_MEMORYTYPE_HOST;
  part.dstHost = column.data();
  part.dstPitch = 16;
  part.dstHeight = 8;
  CHECK_OK(cu.cuMemcpy3D_v2(&part));
  CHECK_EQ(column[4], 7 + 16);
}

RULE(arrays, batches_reach_arrays, "idle:cuMemcpy3DBatchAsync",
     "cuMemcpy3DBatchAsync copies between an array and a pointer, in elements") {
  Session session;
  Array array(described(16, 8, 0));
  write(array, counting(16 * 8, 40), 16, 8, 1);
  Buffer buffer(16 * 8 * 4);
  CHECK_OK(cu.cuMemsetD8_v2(buffer, 0, 16 * 8 * 4));
  CHECK_OK(cu.cuCtxSynchronize());
  CUDA_MEMCPY3D_BATCH_OP copy{};
  copy.src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  copy.src.op.array.array = array;
  copy.src.op.array.offset = {4, 2, 0};
  copy.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  copy.dst.op.ptr.ptr = buffer;
  copy.extent = {8, 4, 1};
  copy.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  Stream stream;
  size_t failed = 0;
  CHECK_OK(cu.cuMemcpy3DBatchAsync(1, &copy, &failed, 0, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  std::vector<unsigned> words = buffer.read<unsigned>(32);
  CHECK_EQ(words[0], 40 + 2 * 16 + 4);
  CHECK_EQ(words[31], 40 + 5 * 16 + 11);
}
