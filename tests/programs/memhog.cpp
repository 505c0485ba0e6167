// Holds a share of the GPU's memory and goes over all of it again and again: each round increments a word of every
// page and checks the value that the round before left. What a job that does not fit beside another looks like.
// Prints "memhog ok: R rounds over B bytes in S s" and, with --think, leaves the GPU idle between rounds.
#include <time.h>

#include <algorithm>
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

namespace {
constexpr uint64_t kPiece = uint64_t{64} << 20;  // allocations of this size, as a framework's allocator makes them
constexpr unsigned kStart = 41;
}  // namespace

int main(int argc, char** argv) {
  Options options(argc, argv,
                  "memhog [--bytes 60%|600M] [--rounds N] [--seconds S] [--think SECONDS] [--managed] [--name TEXT]");
  start();
  uint64_t bytes = options.bytes("--bytes", uint64_t{64} << 20);
  auto rounds = static_cast<unsigned>(options.number("--rounds", 4));
  double duration = options.number("--seconds", 0);  // at least so long, whatever the rounds
  double think = options.number("--think", 0);
  bool managed = options.flag("--managed");
  std::string name = options.text("--name", "memhog");
  options.end();

  CUfunction memtouch = kernel("_Z8memtouchPjmmjS_");
  CUdeviceptr mismatches = 0;
  CHECK(cuMemAlloc_v2(&mismatches, sizeof(unsigned)));
  CHECK(cuMemsetD32_v2(mismatches, 0, 1));
  struct Piece {
    CUdeviceptr address;
    unsigned long words;
  };
  std::vector<Piece> pieces;
  for (uint64_t done = 0; done < bytes;) {
    uint64_t piece_bytes = std::max<uint64_t>(std::min(kPiece, bytes - done), sizeof(unsigned));
    CUdeviceptr address = 0;
    if (managed) {
      CHECK(cuMemAllocManaged(&address, piece_bytes, CU_MEM_ATTACH_GLOBAL));
    } else {
      CHECK(cuMemAlloc_v2(&address, piece_bytes));
    }
    pieces.push_back({address, piece_bytes / sizeof(unsigned)});
    CHECK(cuMemsetD32_v2(address, kStart, piece_bytes / sizeof(unsigned)));
    done += piece_bytes;
  }
  CHECK(cuCtxSynchronize());

  double begin = seconds();
  unsigned round = 0;
  unsigned long stride = 1024;  // a word of every 4 KiB
  for (; round < rounds || seconds() - begin < duration; ++round) {
    unsigned expected = kStart + round;
    for (Piece& piece : pieces) {
      void* parameters[] = {&piece.address, &piece.words, &stride, &expected, &mismatches};
      CHECK(cuLaunchKernel(memtouch, 1, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
    }
    CHECK(cuCtxSynchronize());
    if (think > 0) {
      timespec pause{};
      pause.tv_sec = static_cast<time_t>(think);
      pause.tv_nsec = static_cast<long>((think - static_cast<double>(pause.tv_sec)) * 1e9);
      nanosleep(&pause, nullptr);
    }
  }
  double took = seconds() - begin;
  unsigned wrong = 0;
  CHECK(cuMemcpyDtoH_v2(&wrong, mismatches, sizeof wrong));
  if (wrong != 0) fail("%s: %u words did not hold what was written", name.c_str(), wrong);
  // And once from the host: the first word of each piece.
  for (const Piece& piece : pieces) {
    unsigned word = 0;
    CHECK(cuMemcpyDtoH_v2(&word, piece.address, sizeof word));
    if (word != kStart + round) fail("%s: a word is %u instead of %u", name.c_str(), word, kStart + round);
    CHECK(cuMemFree_v2(piece.address));
  }
  std::printf("%s ok: %u rounds over %llu bytes in %.3f s\n", name.c_str(), round,
              static_cast<unsigned long long>(bytes), took);
  return 0;
}
