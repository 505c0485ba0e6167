// What a program can have on a GPU beside plain buffers and launches, used in every round and compared with what it has
// to be, while rota swaps its memory (tests/gpu/swap.py --program): textures on linear and on pitched memory, a tensor
// map, an executable graph of kernel, copy, set and child nodes, a graph that a kernel launches, a second context, a
// green context, stream-ordered memory, and small neighbours of which some are freed and taken anew.
//
//   nvcc -std=c++17 -O2 -rdc=true -arch=sm_90 -o features tests/gpu/programs/features.cu -lcuda -lcudadevrt
//   features --bytes N --seconds S --seed N
//
// Prints "ready", then one line of JSON: rounds, words that were wrong, and which features the GPU has. Needs
// CUDA 12.4.
#include <cuda.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <cuda/barrier>

namespace {

void fail(const char* what, int error, int line) {
  std::fprintf(stderr, "features: line %d: %s: error %d\n", line, what, error);
  std::exit(1);
}
#define RUNTIME(call)                                                                         \
  do {                                                                                        \
    if (const cudaError_t error = (call); error != cudaSuccess) fail(#call, error, __LINE__); \
  } while (false)
#define DRIVER(call)                                                                        \
  do {                                                                                      \
    if (const CUresult error = (call); error != CUDA_SUCCESS) fail(#call, error, __LINE__); \
  } while (false)

constexpr unsigned kThreads = 256;
constexpr unsigned kTile = 32;  // of the tensor map, words each way

unsigned blocks(std::size_t words) {
  return static_cast<unsigned>((words + kThreads - 1) / kThreads);
}

__device__ std::size_t index_of_thread() {
  return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

// What a word holds in a round.
__host__ __device__ unsigned word_of(std::size_t index, unsigned salt, unsigned round) {
  return static_cast<unsigned>(index) * 2654435761u + salt + round;
}

__global__ void write(unsigned* words, std::size_t count, unsigned salt, unsigned round) {
  const std::size_t at = index_of_thread();
  if (at < count) words[at] = word_of(at, salt, round);
}

__global__ void add(unsigned* words, std::size_t count, unsigned more) {
  const std::size_t at = index_of_thread();
  if (at < count) words[at] += more;
}

__global__ void compare(const unsigned* words, std::size_t count, unsigned salt, unsigned round,
                        unsigned long long* wrong) {
  const std::size_t at = index_of_thread();
  if (at < count && words[at] != word_of(at, salt, round)) atomicAdd(wrong, 1ULL);
}

__global__ void compare_linear(cudaTextureObject_t texture, std::size_t count, unsigned salt, unsigned round,
                               unsigned long long* wrong) {
  const std::size_t at = index_of_thread();
  if (at < count && tex1Dfetch<unsigned>(texture, static_cast<int>(at)) != word_of(at, salt, round))
    atomicAdd(wrong, 1ULL);
}

// Each row is `width` words.
__global__ void write_rows(char* memory, std::size_t pitch, unsigned width, unsigned height, unsigned salt,
                           unsigned round) {
  const std::size_t at = index_of_thread();
  if (at >= std::size_t{width} * height) return;
  reinterpret_cast<unsigned*>(memory + at / width * pitch)[at % width] = word_of(at, salt, round);
}

__global__ void compare_rows(cudaTextureObject_t texture, unsigned width, unsigned height, unsigned salt,
                             unsigned round, unsigned long long* wrong) {
  const std::size_t at = index_of_thread();
  if (at >= std::size_t{width} * height) return;
  const float x = static_cast<float>(at % width) + 0.5f;
  const float y = static_cast<float>(at / width) + 0.5f;
  if (tex2D<unsigned>(texture, x, y) != word_of(at, salt, round)) atomicAdd(wrong, 1ULL);
}

// One block for each tile.
__global__ void compare_tiles(const __grid_constant__ CUtensorMap map, unsigned width, unsigned salt, unsigned round,
                              unsigned long long* wrong) {
#if __CUDA_ARCH__ >= 900
  using Barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ alignas(128) unsigned tile[kTile][kTile];
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ Barrier barrier;
  const int x = static_cast<int>(blockIdx.x * kTile);
  const int y = static_cast<int>(blockIdx.y * kTile);
  if (threadIdx.x == 0) {
    init(&barrier, blockDim.x);
    cuda::device::experimental::fence_proxy_async_shared_cta();
  }
  __syncthreads();
  Barrier::arrival_token token;
  if (threadIdx.x == 0) {
    cuda::device::experimental::cp_async_bulk_tensor_2d_global_to_shared(&tile, &map, x, y, barrier);
    token = cuda::device::barrier_arrive_tx(barrier, 1, sizeof tile);
  } else {
    token = barrier.arrive();
  }
  barrier.wait(std::move(token));
  for (unsigned at = threadIdx.x; at < kTile * kTile; at += blockDim.x) {
    const std::size_t index = std::size_t{y + at / kTile} * width + x + at % kTile;
    if (tile[at / kTile][at % kTile] != word_of(index, salt, round)) atomicAdd(wrong, 1ULL);
  }
#endif
}

__global__ void launch_graph(cudaGraphExec_t graph) {
  cudaGraphLaunch(graph, cudaStreamGraphTailLaunch);
}

struct Buffer {
  unsigned* words;
  std::size_t count;
  unsigned salt;
};

class Program {
 public:
  Program(std::size_t bytes, unsigned seed) : random_(seed) {
    RUNTIME(cudaSetDevice(0));
    RUNTIME(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    RUNTIME(cudaMallocHost(&wrong_, sizeof *wrong_));
    *wrong_ = 0;
    for (std::size_t sum = 0; sum < bytes; sum += kPiece) pieces_.push_back(taken(kPiece / 4));
    for (int number = 0; number < 64; ++number) small_.push_back(taken(1 + random_() % (200 << 10)));
    make_textures();
    make_tensor_map();
    make_graph();
    make_device_graph();
    make_contexts();
    RUNTIME(cudaStreamSynchronize(stream_));
  }

  void round() {
    const unsigned before = round_++;
    for (Buffer& piece : pieces_) {
      compare<<<blocks(piece.count), kThreads, 0, stream_>>>(piece.words, piece.count, piece.salt, before, wrong_);
      add<<<blocks(piece.count), kThreads, 0, stream_>>>(piece.words, piece.count, 1);
    }
    for (Buffer& block : small_) {
      compare<<<blocks(block.count), kThreads, 0, stream_>>>(block.words, block.count, block.salt, before, wrong_);
      add<<<blocks(block.count), kThreads, 0, stream_>>>(block.words, block.count, 1);
    }
    textures(before);
    tiles(before);
    graph();
    device_graph();
    contexts(before);
    pool();
    RUNTIME(cudaGetLastError());
    RUNTIME(cudaStreamSynchronize(stream_));
    // Some neighbours go, others come.
    for (int number = 0; number < 4; ++number) {
      Buffer& block = small_[random_() % small_.size()];
      RUNTIME(cudaFree(block.words));
      block = taken(1 + random_() % (200 << 10));
      add<<<blocks(block.count), kThreads, 0, stream_>>>(block.words, block.count, round_);
    }
    RUNTIME(cudaStreamSynchronize(stream_));
  }
  unsigned rounds() const { return round_; }
  unsigned long long wrong() const { return *wrong_; }
  const std::string& lacks() const { return lacks_; }

 private:
  static constexpr std::size_t kPiece = std::size_t{64} << 20;
  static constexpr unsigned kWidth = 1000;
  static constexpr unsigned kHeight = 700;
  static constexpr unsigned kMapped = 2048;  // words each way

  // As in round 0.
  Buffer taken(std::size_t count) {
    Buffer buffer{nullptr, count, static_cast<unsigned>(random_())};
    RUNTIME(cudaMalloc(&buffer.words, count * sizeof(unsigned)));
    write<<<blocks(count), kThreads, 0, stream_>>>(buffer.words, count, buffer.salt, 0);
    return buffer;
  }

  void make_textures() {
    linear_ = taken(4 << 20);
    cudaResourceDesc resource{};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = linear_.words;
    resource.res.linear.desc = cudaCreateChannelDesc<unsigned>();
    resource.res.linear.sizeInBytes = linear_.count * sizeof(unsigned);
    cudaTextureDesc texture{};
    texture.readMode = cudaReadModeElementType;
    RUNTIME(cudaCreateTextureObject(&linear_texture_, &resource, &texture, nullptr));
    RUNTIME(cudaMallocPitch(&rows_, &pitch_, kWidth * sizeof(unsigned), kHeight));
    resource = {};
    resource.resType = cudaResourceTypePitch2D;
    resource.res.pitch2D.devPtr = rows_;
    resource.res.pitch2D.desc = cudaCreateChannelDesc<unsigned>();
    resource.res.pitch2D.width = kWidth;
    resource.res.pitch2D.height = kHeight;
    resource.res.pitch2D.pitchInBytes = pitch_;
    RUNTIME(cudaCreateTextureObject(&rows_texture_, &resource, &texture, nullptr));
    write_rows<<<blocks(kWidth * kHeight), kThreads, 0, stream_>>>(rows_, pitch_, kWidth, kHeight, 5, 0);
  }
  void textures(unsigned before) {
    compare_linear<<<blocks(linear_.count), kThreads, 0, stream_>>>(linear_texture_, linear_.count, linear_.salt,
                                                                    before, wrong_);
    add<<<blocks(linear_.count), kThreads, 0, stream_>>>(linear_.words, linear_.count, 1);
    compare_rows<<<blocks(kWidth * kHeight), kThreads, 0, stream_>>>(rows_texture_, kWidth, kHeight, 5, before, wrong_);
    write_rows<<<blocks(kWidth * kHeight), kThreads, 0, stream_>>>(rows_, pitch_, kWidth, kHeight, 5, round_);
  }

  void make_tensor_map() {
    int major = 0;
    RUNTIME(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major < 9) {
      lacks_ += " tensor maps";
      return;
    }
    mapped_ = taken(std::size_t{kMapped} * kMapped);
    const cuuint64_t size[2] = {kMapped, kMapped};
    const cuuint64_t stride[1] = {kMapped * sizeof(unsigned)};
    const cuuint32_t box[2] = {kTile, kTile};
    const cuuint32_t step[2] = {1, 1};
    DRIVER(cuTensorMapEncodeTiled(&map_, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, mapped_.words, size, stride, box, step,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  }
  void tiles(unsigned before) {
    if (mapped_.words == nullptr) return;
    compare_tiles<<<dim3(kMapped / kTile, kMapped / kTile), kThreads, 0, stream_>>>(map_, kMapped, mapped_.salt, before,
                                                                                    wrong_);
    add<<<blocks(mapped_.count), kThreads, 0, stream_>>>(mapped_.words, mapped_.count, 1);
  }

  static cudaGraphNode_t kernel(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& after, void* function,
                                std::size_t words, void** arguments) {
    cudaKernelNodeParams parameters{};
    parameters.func = function;
    parameters.gridDim = dim3(blocks(words));
    parameters.blockDim = dim3(kThreads);
    parameters.kernelParams = arguments;
    cudaGraphNode_t node = nullptr;
    RUNTIME(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &parameters));
    return node;
  }

  // first += 1; second = first; third = 7 everywhere; second += 3 by a child.
  void make_graph() {
    for (Buffer* buffer : {&first_, &second_, &third_}) *buffer = taken(2 << 20);
    cudaGraph_t graph = nullptr;
    cudaGraph_t child = nullptr;
    RUNTIME(cudaGraphCreate(&graph, 0));
    RUNTIME(cudaGraphCreate(&child, 0));
    unsigned one = 1;
    unsigned three = 3;
    void* add_one[] = {&first_.words, &first_.count, &one};
    void* add_three[] = {&second_.words, &second_.count, &three};
    const cudaGraphNode_t kernel_node = kernel(graph, {}, reinterpret_cast<void*>(add), first_.count, add_one);
    cudaGraphNode_t copy_node = nullptr;
    RUNTIME(cudaGraphAddMemcpyNode1D(&copy_node, graph, &kernel_node, 1, second_.words, first_.words,
                                     first_.count * sizeof(unsigned), cudaMemcpyDeviceToDevice));
    cudaMemsetParams set{};
    set.dst = third_.words;
    set.value = 7;
    set.elementSize = 4;
    set.width = third_.count;
    set.height = 1;
    cudaGraphNode_t set_node = nullptr;
    RUNTIME(cudaGraphAddMemsetNode(&set_node, graph, nullptr, 0, &set));
    kernel(child, {}, reinterpret_cast<void*>(add), second_.count, add_three);
    cudaGraphNode_t child_node = nullptr;
    RUNTIME(cudaGraphAddChildGraphNode(&child_node, graph, &copy_node, 1, child));
    RUNTIME(cudaGraphInstantiate(&graph_, graph, 0));
  }
  void graph() {
    RUNTIME(cudaGraphLaunch(graph_, stream_));
    compare<<<blocks(first_.count), kThreads, 0, stream_>>>(first_.words, first_.count, first_.salt, round_, wrong_);
    compare<<<blocks(second_.count), kThreads, 0, stream_>>>(second_.words, second_.count, first_.salt, round_ + 3,
                                                             wrong_);
    compare_all(third_, 7);
  }
  void compare_all(const Buffer& buffer, unsigned value);

  // A kernel launches a graph that adds one.
  void make_device_graph() {
    launched_ = taken(2 << 20);
    cudaGraph_t graph = nullptr;
    RUNTIME(cudaGraphCreate(&graph, 0));
    unsigned one = 1;
    void* add_one[] = {&launched_.words, &launched_.count, &one};
    kernel(graph, {}, reinterpret_cast<void*>(add), launched_.count, add_one);
    cudaGraphExec_t on_device = nullptr;
    RUNTIME(cudaGraphInstantiate(&on_device, graph, cudaGraphInstantiateFlagDeviceLaunch));
    RUNTIME(cudaGraphUpload(on_device, stream_));
    cudaGraph_t launcher = nullptr;
    RUNTIME(cudaGraphCreate(&launcher, 0));
    void* launches[] = {&on_device};
    cudaKernelNodeParams parameters{};
    parameters.func = reinterpret_cast<void*>(launch_graph);
    parameters.gridDim = dim3(1);
    parameters.blockDim = dim3(1);
    parameters.kernelParams = launches;
    cudaGraphNode_t node = nullptr;
    RUNTIME(cudaGraphAddKernelNode(&node, launcher, nullptr, 0, &parameters));
    RUNTIME(cudaGraphInstantiate(&launcher_, launcher, 0));
  }
  void device_graph() {
    RUNTIME(cudaGraphLaunch(launcher_, stream_));
    compare<<<blocks(launched_.count), kThreads, 0, stream_>>>(launched_.words, launched_.count, launched_.salt, round_,
                                                               wrong_);
  }

  void make_contexts() {
    DRIVER(cuCtxGetCurrent(&primary_));
    CUdevice device = 0;
    DRIVER(cuDeviceGet(&device, 0));
#if CUDA_VERSION >= 13000
    DRIVER(cuCtxCreate(&other_, nullptr, 0, device));
#else
    DRIVER(cuCtxCreate(&other_, 0, device));
#endif
    RUNTIME(cudaStreamCreateWithFlags(&stream_of_other_, cudaStreamNonBlocking));
    RUNTIME(cudaMallocHost(&wrong_of_other_, sizeof *wrong_of_other_));
    *wrong_of_other_ = 0;
    of_other_ = {nullptr, 8 << 20, 11};
    RUNTIME(cudaMalloc(&of_other_.words, of_other_.count * sizeof(unsigned)));
    write<<<blocks(of_other_.count), kThreads, 0, stream_of_other_>>>(of_other_.words, of_other_.count, of_other_.salt,
                                                                      0);
    RUNTIME(cudaStreamSynchronize(stream_of_other_));
    DRIVER(cuCtxSetCurrent(primary_));

    CUdevResource all{};
    CUdevResource part{};
    unsigned groups = 1;
    CUdevResourceDesc description{};
    if (cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        cuDevSmResourceSplitByCount(&part, &groups, &all, nullptr, 0, 16) != CUDA_SUCCESS ||
        cuDevResourceGenerateDesc(&description, &part, 1) != CUDA_SUCCESS ||
        cuGreenCtxCreate(&green_, description, device, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS ||
        cuGreenCtxStreamCreate(&green_stream_, green_, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS) {
      lacks_ += " green contexts";
      green_stream_ = nullptr;
      return;
    }
    of_green_ = taken(8 << 20);
  }
  void contexts(unsigned before) {
    DRIVER(cuCtxSetCurrent(other_));
    compare<<<blocks(of_other_.count), kThreads, 0, stream_of_other_>>>(of_other_.words, of_other_.count,
                                                                        of_other_.salt, before, wrong_of_other_);
    add<<<blocks(of_other_.count), kThreads, 0, stream_of_other_>>>(of_other_.words, of_other_.count, 1);
    RUNTIME(cudaStreamSynchronize(stream_of_other_));
    DRIVER(cuCtxSetCurrent(primary_));
    *wrong_ += std::exchange(*wrong_of_other_, 0);
    if (green_stream_ == nullptr) return;
    CUcontext green = nullptr;
    DRIVER(cuCtxFromGreenCtx(&green, green_));
    DRIVER(cuCtxSetCurrent(green));
    compare<<<blocks(of_green_.count), kThreads, 0, green_stream_>>>(of_green_.words, of_green_.count, of_green_.salt,
                                                                     before, wrong_);
    add<<<blocks(of_green_.count), kThreads, 0, green_stream_>>>(of_green_.words, of_green_.count, 1);
    RUNTIME(cudaGetLastError());
    RUNTIME(cudaStreamSynchronize(green_stream_));
    DRIVER(cuCtxSetCurrent(primary_));
  }

  // Taken in one round, compared and given back in the next.
  void pool() {
    if (pooled_.words != nullptr) {
      compare<<<blocks(pooled_.count), kThreads, 0, stream_>>>(pooled_.words, pooled_.count, pooled_.salt, 0, wrong_);
      RUNTIME(cudaFreeAsync(pooled_.words, stream_));
    }
    pooled_ = {nullptr, 1 + random_() % (8 << 20), static_cast<unsigned>(random_())};
    RUNTIME(cudaMallocAsync(&pooled_.words, pooled_.count * sizeof(unsigned), stream_));
    write<<<blocks(pooled_.count), kThreads, 0, stream_>>>(pooled_.words, pooled_.count, pooled_.salt, 0);
  }

  std::mt19937 random_;
  unsigned round_ = 0;
  std::string lacks_;
  cudaStream_t stream_ = nullptr;
  unsigned long long* wrong_ = nullptr;
  std::vector<Buffer> pieces_, small_;
  Buffer linear_{}, mapped_{}, first_{}, second_{}, third_{}, launched_{}, of_other_{}, of_green_{}, pooled_{};
  char* rows_ = nullptr;
  std::size_t pitch_ = 0;
  cudaTextureObject_t linear_texture_ = 0, rows_texture_ = 0;
  CUtensorMap map_{};
  cudaGraphExec_t graph_ = nullptr, launcher_ = nullptr;
  CUcontext primary_ = nullptr, other_ = nullptr;
  cudaStream_t stream_of_other_ = nullptr;
  unsigned long long* wrong_of_other_ = nullptr;
  CUgreenCtx green_ = nullptr;
  CUstream green_stream_ = nullptr;
};

__global__ void compare_value(const unsigned* words, std::size_t count, unsigned value, unsigned long long* wrong) {
  const std::size_t at = index_of_thread();
  if (at < count && words[at] != value) atomicAdd(wrong, 1ULL);
}

void Program::compare_all(const Buffer& buffer, unsigned value) {
  compare_value<<<blocks(buffer.count), kThreads, 0, stream_>>>(buffer.words, buffer.count, value, wrong_);
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 5;
  std::size_t bytes = std::size_t{1} << 30;
  unsigned seed = 1;
  for (int at = 1; at + 1 < argc; at += 2) {
    if (std::strcmp(argv[at], "--bytes") == 0) bytes = std::strtoull(argv[at + 1], nullptr, 0);
    if (std::strcmp(argv[at], "--seconds") == 0) seconds = std::strtod(argv[at + 1], nullptr);
    if (std::strcmp(argv[at], "--seed") == 0) seed = static_cast<unsigned>(std::strtoul(argv[at + 1], nullptr, 0));
  }
  Program program(bytes, seed);
  std::printf("ready\n");
  std::fflush(stdout);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) program.round();
  std::printf("{\"rounds\": %u, \"wrong\": %llu, \"lacks\": \"%s\"}\n", program.rounds(), program.wrong(),
              program.lacks().c_str());
  return program.wrong() == 0 ? 0 : 1;
}
