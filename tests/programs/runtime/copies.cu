// Copies: by kind, rows, boxes, arrays, peers, batches; what is refused.
#include <numeric>
#include <vector>

#include "tests/programs/runtime/runtime_program.h"

namespace {

std::vector<unsigned char> counting(size_t bytes) {
  std::vector<unsigned char> values(bytes);
  std::iota(values.begin(), values.end(), static_cast<unsigned char>(1));
  return values;
}

void by_kind() {
  constexpr size_t kBytes = 1 << 16;
  std::vector<unsigned char> from = counting(kBytes);
  std::vector<unsigned char> to(kBytes);
  unsigned char *a, *b;
  CHECK(cudaMalloc(&a, kBytes));
  CHECK(cudaMalloc(&b, kBytes));
  CHECK(cudaMemcpy(a, from.data(), kBytes, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(b, a, kBytes, cudaMemcpyDeviceToDevice));
  CHECK(cudaMemcpy(to.data(), b, kBytes, cudaMemcpyDeviceToHost));
  REQUIRE(to == from);
  to.assign(kBytes, 0);
  CHECK(cudaMemcpy(to.data(), from.data(), kBytes, cudaMemcpyHostToHost));
  REQUIRE(to == from);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  to.assign(kBytes, 0);
  CHECK(cudaMemsetAsync(a, 0, kBytes, stream));
  CHECK(cudaMemcpyAsync(a, from.data(), kBytes, cudaMemcpyDefault, stream));
  CHECK(cudaMemcpyAsync(b, a + 256, kBytes - 256, cudaMemcpyDeviceToDevice, stream));
  CHECK(cudaMemcpyAsync(to.data(), b, kBytes - 256, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  REQUIRE(std::memcmp(to.data(), from.data() + 256, kBytes - 256) == 0);
  CHECK(cudaMemcpyPeer(a, 0, b, 0, kBytes));
  CHECK(cudaMemcpyPeerAsync(b, 0, a, 0, kBytes, stream));
  CHECK(cudaStreamSynchronize(stream));
  EXPECT(cudaMemcpy(a, from.data(), kBytes, static_cast<cudaMemcpyKind>(9)), cudaErrorInvalidMemcpyDirection);
  CHECK(cudaMemcpy(a, from.data(), 0, cudaMemcpyHostToDevice));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(a));
  CHECK(cudaFree(b));
}

void rows() {
  constexpr size_t kWidth = 50, kRows = 7, kHostPitch = 64;
  std::vector<unsigned char> from = counting(kHostPitch * kRows);
  std::vector<unsigned char> to(kHostPitch * kRows, 0);
  unsigned char* memory;
  size_t pitch;
  CHECK(cudaMallocPitch(&memory, &pitch, kWidth, kRows));
  CHECK(cudaMemcpy2D(memory, pitch, from.data(), kHostPitch, kWidth, kRows, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy2D(to.data(), kHostPitch, memory, pitch, kWidth, kRows, cudaMemcpyDeviceToHost));
  for (size_t row = 0; row < kRows; ++row) {
    REQUIRE(std::memcmp(&to[row * kHostPitch], &from[row * kHostPitch], kWidth) == 0);
    REQUIRE(to[row * kHostPitch + kWidth] == 0);
  }
  to.assign(to.size(), 0);
  CHECK(cudaMemcpy2DAsync(to.data(), kHostPitch, memory + 2 * pitch, pitch, kWidth, 3, cudaMemcpyDefault, nullptr));
  CHECK(cudaDeviceSynchronize());
  REQUIRE(to[0] == from[2 * kHostPitch] && to[2 * kHostPitch] == from[4 * kHostPitch]);
  EXPECT(cudaMemcpy2D(memory, 10, from.data(), kHostPitch, kWidth, kRows, cudaMemcpyHostToDevice),
         cudaErrorInvalidPitchValue);
  CHECK(cudaFree(memory));
}

void boxes() {
  constexpr size_t kWidth = 32, kHeight = 4, kDepth = 3;
  std::vector<unsigned char> from = counting(kWidth * kHeight * kDepth);
  std::vector<unsigned char> to(from.size(), 0);
  cudaPitchedPtr memory;
  CHECK(cudaMalloc3D(&memory, make_cudaExtent(kWidth, kHeight, kDepth)));
  cudaMemcpy3DParms copy{};
  copy.srcPtr = make_cudaPitchedPtr(from.data(), kWidth, kWidth, kHeight);
  copy.dstPtr = memory;
  copy.extent = make_cudaExtent(kWidth, kHeight, kDepth);
  copy.kind = cudaMemcpyHostToDevice;
  CHECK(cudaMemcpy3D(&copy));
  copy = cudaMemcpy3DParms{};  // a part, from the middle to the corner
  copy.srcPtr = memory;
  copy.srcPos = make_cudaPos(8, 1, 1);
  copy.dstPtr = make_cudaPitchedPtr(to.data(), kWidth, kWidth, kHeight);
  copy.extent = make_cudaExtent(16, 2, 2);
  copy.kind = cudaMemcpyDeviceToHost;
  CHECK(cudaMemcpy3DAsync(&copy, nullptr));
  CHECK(cudaDeviceSynchronize());
  for (size_t z = 0; z < 2; ++z) {
    for (size_t y = 0; y < 2; ++y) {
      REQUIRE(std::memcmp(&to[(z * kHeight + y) * kWidth], &from[((z + 1) * kHeight + y + 1) * kWidth + 8], 16) == 0);
    }
  }
  REQUIRE(to[16] == 0);
  cudaMemcpy3DParms nowhere{};
  nowhere.extent = make_cudaExtent(1, 1, 1);
  EXPECT(cudaMemcpy3D(&nowhere), cudaErrorInvalidValue);
  CHECK(cudaFree(memory.ptr));
}

void arrays() {
  constexpr size_t kWidth = 24, kHeight = 5;
  cudaChannelFormatDesc channels = cudaCreateChannelDesc(32, 32, 0, 0, cudaChannelFormatKindFloat);
  cudaArray_t array;
  CHECK(cudaMallocArray(&array, &channels, kWidth, kHeight, cudaArrayDefault));
  cudaChannelFormatDesc has;
  cudaExtent extent;
  unsigned flags = 1;
  CHECK(cudaArrayGetInfo(&has, &extent, &flags, array));
  REQUIRE(has.x == 32 && has.y == 32 && has.z == 0 && has.f == cudaChannelFormatKindFloat);
  REQUIRE(extent.width == kWidth && extent.height == kHeight && flags == 0);
  constexpr size_t kRow = kWidth * 2 * sizeof(float);
  std::vector<unsigned char> from = counting(kRow * kHeight);
  std::vector<unsigned char> to(from.size(), 0);
  CHECK(cudaMemcpy2DToArray(array, 0, 0, from.data(), kRow, kRow, kHeight, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy2DFromArray(to.data(), kRow, array, 0, 0, kRow, kHeight, cudaMemcpyDeviceToHost));
  REQUIRE(to == from);
  cudaMemcpy3DParms copy{};  // elements, where an array takes part
  to.assign(to.size(), 0);
  copy.srcArray = array;
  copy.srcPos = make_cudaPos(4, 1, 0);
  copy.dstPtr = make_cudaPitchedPtr(to.data(), kRow, kRow, kHeight);
  copy.extent = make_cudaExtent(3, 2, 1);
  copy.kind = cudaMemcpyDeviceToHost;
  CHECK(cudaMemcpy3D(&copy));
  REQUIRE(std::memcmp(&to[kRow], &from[2 * kRow + 32], 24) == 0 && to[24] == 0);
  CHECK(cudaFreeArray(array));
  cudaChannelFormatDesc odd = cudaCreateChannelDesc(8, 16, 0, 0, cudaChannelFormatKindUnsigned);
  REQUIRE(cudaMallocArray(&array, &odd, kWidth, kHeight, 0) != cudaSuccess);
  cudaGetLastError();
}

void batches() {
  constexpr size_t kBytes = 4096;
  std::vector<unsigned char> from = counting(2 * kBytes);
  unsigned char* memory;
  CHECK(cudaMalloc(&memory, 2 * kBytes));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  void* to[] = {memory, memory + kBytes};
  const void* sources[] = {from.data() + kBytes, from.data()};
  size_t sizes[] = {kBytes, kBytes};
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
  CHECK(cudaMemcpyBatchAsync(to, sources, sizes, 2, &attributes, &first, 1, stream));
  CHECK(cudaStreamSynchronize(stream));
  std::vector<unsigned char> back(2 * kBytes);
  CHECK(cudaMemcpy(back.data(), memory, back.size(), cudaMemcpyDeviceToHost));
  REQUIRE(std::memcmp(back.data(), from.data() + kBytes, kBytes) == 0);
  REQUIRE(std::memcmp(back.data() + kBytes, from.data(), kBytes) == 0);
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(memory));
}

}  // namespace

int main() {
  by_kind();
  rows();
  boxes();
  arrays();
  batches();
  return succeed();
}
