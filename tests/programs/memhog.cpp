// Holds a share of the GPU's memory and goes over all of it repeatedly: each round increments a word of every page and
// checks the value from the previous round. It stands for a job that does not fit next to another.
//
//   memhog [--bytes N[K|M|G] | --share 0.6] [--rounds N | --seconds S] [--think S] [--ahead N] [--managed] [--hold]
//          [--grow 0.3] [--untouched] [--pieces 8] [--after FILE]
//
// Takes the memory in --pieces pieces (cuMemAlloc; --managed: cuMemAllocManaged). --grow takes this additional share of
// the GPU's memory after half of the rounds, with work in progress. --think leaves the GPU idle for this long after
// each round. --untouched uses none of it. --ahead waits for the GPU only after this many rounds (1). --hold prints
// "ready" after the first round and continues until stdin closes or SIGTERM arrives. --after makes no CUDA call before
// this file exists. Ends with one line of JSON:
// {"rounds":…,"seconds":…,"wrong":…,"bytes":…}; `wrong` counts words that did not hold what was written, and any makes
// the exit status 1. Out of memory is one line and exit status 2.
#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

namespace {

constexpr unsigned kStart = 41;

volatile sig_atomic_t terminated = 0;

struct Piece {
  CUdeviceptr address;
  unsigned long words;
};

// Every word of it holds `start`.
std::vector<Piece> allocate(uint64_t bytes, unsigned count, bool managed, bool untouched, unsigned start) {
  std::vector<Piece> pieces;
  uint64_t piece_bytes = std::max<uint64_t>(bytes / count / sizeof(unsigned) * sizeof(unsigned), sizeof(unsigned));
  for (unsigned number = 0; number < count; ++number) {
    Piece piece{0, piece_bytes / sizeof(unsigned)};
    CUresult result = managed ? cuda().cuMemAllocManaged(&piece.address, piece_bytes, CU_MEM_ATTACH_GLOBAL)
                              : cuda().cuMemAlloc_v2(&piece.address, piece_bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      std::fprintf(stderr, "memhog: %s of %llu bytes: CUDA_ERROR_OUT_OF_MEMORY\n",
                   managed ? "cuMemAllocManaged" : "cuMemAlloc", static_cast<unsigned long long>(piece_bytes));
      std::exit(2);  // NOLINT(concurrency-mt-unsafe)
    }
    check(result, managed ? "cuMemAllocManaged" : "cuMemAlloc");
    if (untouched) continue;
    CHECK(cuMemsetD32_v2(piece.address, start, piece.words));
    pieces.push_back(piece);
  }
  return pieces;
}

void pause_for(double length) {
  timespec pause{};
  pause.tv_sec = static_cast<time_t>(length);
  pause.tv_nsec = static_cast<long>((length - static_cast<double>(pause.tv_sec)) * 1e9);
  nanosleep(&pause, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  Options options(argc, argv,
                  "memhog [--bytes N[K|M|G] | --share 0.6] [--rounds N | --seconds S] [--think S] [--ahead N] "
                  "[--managed] [--hold] [--grow 0.3] [--untouched] [--pieces 8] "
                  "[--after FILE]");
  if (const std::string file = options.text("--after", ""); !file.empty()) {
    while (access(file.c_str(), F_OK) != 0) pause_for(0.01);
  }
  start();
  uint64_t bytes = options.bytes("--bytes", uint64_t{64} << 20);
  size_t free = 0;
  size_t total = 0;
  CHECK(cuMemGetInfo_v2(&free, &total));
  if (double share = options.number("--share", 0); share > 0) {
    bytes = static_cast<uint64_t>(share * static_cast<double>(total));
  }
  const auto more = static_cast<uint64_t>(options.number("--grow", 0) * static_cast<double>(total));
  double duration = options.number("--seconds", 0);
  auto rounds = static_cast<unsigned>(options.number("--rounds", duration > 0 ? 1 : 4));
  double think = options.number("--think", 0);
  auto ahead = std::max(1U, static_cast<unsigned>(options.number("--ahead", 1)));
  bool managed = options.flag("--managed");
  bool hold = options.flag("--hold");
  bool untouched = options.flag("--untouched");
  auto count = std::max(1U, static_cast<unsigned>(options.number("--pieces", 8)));
  options.end();
  struct sigaction action{};
  action.sa_handler = [](int) { terminated = 1; };
  if (hold) sigaction(SIGTERM, &action, nullptr);

  CUfunction memtouch = kernel("_Z8memtouchPjmmjS_");
  CUdeviceptr mismatches = 0;
  CHECK(cuMemAlloc_v2(&mismatches, sizeof(unsigned)));
  CHECK(cuMemsetD32_v2(mismatches, 0, 1));
  std::vector<Piece> pieces = allocate(bytes, count, managed, untouched, kStart);
  CHECK(cuCtxSynchronize());

  double begin = seconds();
  unsigned round = 0;
  unsigned long stride = 1024;  // a word of every 4 KiB
  auto goes_on = [&] {
    if (hold) return terminated == 0 && (round == 0 || !stdin_closed());
    return round < rounds || seconds() - begin < duration;
  };
  for (; goes_on(); ++round) {
    unsigned expected = kStart + round;
    if (more != 0 && round == rounds / 2) {
      const std::vector<Piece> grown = allocate(more, count, managed, untouched, expected);
      pieces.insert(pieces.end(), grown.begin(), grown.end());
      bytes += more;
    }
    for (Piece& piece : pieces) {
      void* parameters[] = {&piece.address, &piece.words, &stride, &expected, &mismatches};
      CHECK(cuLaunchKernel(memtouch, 64, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
    }
    if (round % ahead == ahead - 1 || (round == 0 && hold)) CHECK(cuCtxSynchronize());
    if (round == 0 && hold) {
      std::printf("ready\n");
      std::fflush(stdout);
    }
    if (think > 0) pause_for(think);
  }
  CHECK(cuCtxSynchronize());
  double took = seconds() - begin;
  unsigned wrong = 0;
  CHECK(cuMemcpyDtoH_v2(&wrong, mismatches, sizeof wrong));
  for (const Piece& piece : pieces) {  // and finally from the host
    unsigned word = 0;
    CHECK(cuMemcpyDtoH_v2(&word, piece.address, sizeof word));
    if (word != kStart + round) ++wrong;
    CHECK(cuMemFree_v2(piece.address));
  }
  std::printf("{\"rounds\":%u,\"seconds\":%.6f,\"wrong\":%u,\"bytes\":%llu}\n", round, took, wrong,
              static_cast<unsigned long long>(bytes));
  return wrong == 0 ? 0 : 1;
}
