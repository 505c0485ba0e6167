// A program that uses a GPU in a given way and says, in a file that others map, how much it has done:
//
//   nvcc -O2 -arch=sm_70 -cudart static -o load tests/gpu/programs/load.cu
//   load COUNTER saturate KERNEL_US EVERY     kernels back to back, waited for after every so many
//   load COUNTER half     KERNEL_US CPU_US    one kernel, waited for, then so long on the CPU
//   load COUNTER tiny     EVERY               empty kernels, waited for after every so many: the CPU is what takes time
//   load COUNTER burst    KERNEL_US COUNT THINK_MS BURSTS   so many kernels, waited for, then a pause; prints how long
//                                             each burst took, in ms
//   load COUNTER stamps   KERNEL_US EVERY     as saturate; in the end it prints when each of the last kernels began and
//                                             ended, in ns by the GPU's clock, which all programs share
//   load COUNTER rounds                       prints how many rounds of the kernels' loop take 1 us
// Each program measures its kernels' rounds itself, which comes out differently beside others and at other clocks.
// LOAD_ROUNDS_PER_US is used in place of what it measured, so that the programs of one comparison do the same work.
// It ends when the file's second word is not 0. The first word counts kernels, those of whole steps, and the third is
// when the last of them was through, in ns of CLOCK_MONOTONIC.
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

// So many dependent additions: work, not time, since a kernel that is interrupted for another program's does not get
// on.
__global__ void add(int rounds, float* out) {
  float sum = static_cast<float>(threadIdx.x);
  for (int i = 0; i < rounds; ++i) sum = sum * 0.999f + 1.0f;
  if (sum < 0) *out = sum;
}
__global__ void nothing() {}

struct Stamp {
  unsigned long long begun = ~0ULL;
  unsigned long long ended = 0;
};
__device__ unsigned long long gpu_time() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
__global__ void add_stamped(int rounds, float* out, Stamp* stamp) {
  if (threadIdx.x == 0) atomicMin(&stamp->begun, gpu_time());
  float sum = static_cast<float>(threadIdx.x);
  for (int i = 0; i < rounds; ++i) sum = sum * 0.999f + 1.0f;
  if (sum < 0) *out = sum;
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(&stamp->ended, gpu_time());
}

void check(cudaError_t result) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "load: %s\n", cudaGetErrorString(result));
  std::exit(1);
}

double ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Words {
  volatile std::uint64_t done;
  volatile std::uint64_t stop;
  volatile std::uint64_t at;
  void set_done(std::uint64_t count) {
    at = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    done = count;
  }
};

Words* map(const char* path) {
  const int file = open(path, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, 4096) != 0) {
    std::perror("load: the counter's file");
    std::exit(1);
  }
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return static_cast<Words*>(memory);
}

// Blocks that fill each processor, for so long when it is alone.
struct Kernel {
  int blocks = 1;
  int rounds = 1000;
  double per_us = 0;
  explicit Kernel(double us) {
    check(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0));
    cudaEvent_t begun, ended;
    check(cudaEventCreate(&begun));
    check(cudaEventCreate(&ended));
    // The shortest of some: others may use the GPU.
    float best = 1e9f;
    for (int i = 0; i < 20; ++i) {
      rounds = 50000;
      check(cudaEventRecord(begun));
      launch();
      check(cudaEventRecord(ended));
      check(cudaEventSynchronize(ended));
      float took = 0;
      check(cudaEventElapsedTime(&took, begun, ended));
      if (took < best) best = took;
    }
    per_us = 50000 / (best * 1e3);
    if (const char* given = std::getenv("LOAD_ROUNDS_PER_US")) per_us = std::atof(given);
    rounds = static_cast<int>(per_us * us);
  }
  void launch() const { add<<<blocks, 1024>>>(rounds, nullptr); }
  void launch(Stamp* stamp) const { add_stamped<<<blocks, 1024>>>(rounds, nullptr, stamp); }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  Words& words = *map(argv[1]);
  const char* kind = argv[2];
  const double first = argc > 3 ? std::atof(argv[3]) : 0;
  const double second = argc > 4 ? std::atof(argv[4]) : 0;
  check(cudaFree(nullptr));
  if (std::strcmp(kind, "rounds") == 0) {
    for (int i = 0; i < 20; ++i) Kernel{1};  // the clocks rise meanwhile
    std::printf("%.6f\n", Kernel(1).per_us);
  } else if (argc < 4) {
    return 2;
  } else if (std::strcmp(kind, "saturate") == 0) {
    const Kernel kernel(first);
    while (words.stop == 0) {
      for (int i = 0; i < static_cast<int>(second); ++i) kernel.launch();
      check(cudaDeviceSynchronize());
      words.set_done(words.done + static_cast<std::uint64_t>(second));
    }
  } else if (std::strcmp(kind, "stamps") == 0) {
    constexpr std::size_t kStamps = 1 << 16;
    const Kernel kernel(first);
    std::vector<Stamp> stamps(kStamps);
    Stamp* on_gpu = nullptr;
    check(cudaMalloc(&on_gpu, kStamps * sizeof(Stamp)));
    check(cudaMemcpy(on_gpu, stamps.data(), kStamps * sizeof(Stamp), cudaMemcpyHostToDevice));
    std::size_t made = 0;
    while (words.stop == 0 && made + static_cast<std::size_t>(second) < kStamps) {
      for (int i = 0; i < static_cast<int>(second); ++i) kernel.launch(on_gpu + made++);
      check(cudaDeviceSynchronize());
      words.set_done(made);
    }
    check(cudaMemcpy(stamps.data(), on_gpu, made * sizeof(Stamp), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < made; ++i) std::printf("%llu %llu\n", stamps[i].begun, stamps[i].ended);
  } else if (std::strcmp(kind, "half") == 0) {
    const Kernel kernel(first);
    while (words.stop == 0) {
      kernel.launch();
      check(cudaDeviceSynchronize());
      for (const double until = ms() + second / 1e3; ms() < until;) {
      }
      words.set_done(words.done + 1);
    }
  } else if (std::strcmp(kind, "tiny") == 0) {
    while (words.stop == 0) {
      for (int i = 0; i < static_cast<int>(first); ++i) nothing<<<1, 32>>>();
      check(cudaDeviceSynchronize());
      words.set_done(words.done + static_cast<std::uint64_t>(first));
    }
  } else if (std::strcmp(kind, "burst") == 0) {
    const Kernel kernel(first);
    const double think = std::atof(argv[5]);
    const int bursts = std::atoi(argv[6]);
    for (int burst = 0; burst < bursts && words.stop == 0; ++burst) {
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(think));
      const double begun = ms();
      for (int i = 0; i < static_cast<int>(second); ++i) kernel.launch();
      check(cudaDeviceSynchronize());
      std::printf("%.3f\n", ms() - begun);
      words.set_done(words.done + static_cast<std::uint64_t>(second));
    }
  } else {
    return 2;
  }
  return 0;
}
