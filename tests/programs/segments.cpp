// Holds a share of the GPU's memory in one long reservation, mapped piece by piece with memory from cuMemCreate, like
// PyTorch's expandable segments, and goes over all of it repeatedly, like memhog. Every few rounds one piece is checked
// through a second mapping, and another is unmapped and replaced.
//
//   segments [--share 0.6 | --bytes N[K|M|G]] [--rounds N | --seconds S] [--seed N] [--ahead N] [--hold] [--still]
//
// Pieces have 2 or 20 MiB; every other one can be exported, and the handle of every third is released as soon as it is
// mapped. --still replaces nothing. --seed: the initial contents. --ahead, --hold and the output are as in memhog.cpp.
// tests/gpu/swap.py --program runs it on a GPU.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr unsigned long kStride = 1024;  // a word of every 4 KiB

volatile sig_atomic_t terminated = 0;

struct Piece {
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;  // 0: released
};

CUmemLocation this_gpu() {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return location;
}

void allow(CUdeviceptr address, uint64_t bytes) {
  CUmemAccessDesc access{};
  access.location = this_gpu();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CHECK(cuMemSetAccess(address, bytes, &access, 1));
}

// New memory at the piece's address.
void fill(Piece& piece, size_t number, unsigned value) {
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = this_gpu();
  if (number % 2 != 0) what.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUresult result = cuda().cuMemCreate(&piece.handle, piece.bytes, &what, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    std::fprintf(stderr, "segments: cuMemCreate of %llu bytes: CUDA_ERROR_OUT_OF_MEMORY\n",
                 static_cast<unsigned long long>(piece.bytes));
    std::exit(2);  // NOLINT(concurrency-mt-unsafe)
  }
  check(result, "cuMemCreate");
  CHECK(cuMemMap(piece.address, piece.bytes, 0, piece.handle, 0));
  allow(piece.address, piece.bytes);
  CHECK(cuMemsetD32_v2(piece.address, value, piece.bytes / sizeof(unsigned)));
  if (number % 3 != 0) return;
  CHECK(cuMemRelease(piece.handle));
  piece.handle = 0;
}

void replace(Piece& piece, size_t number, unsigned value) {
  CHECK(cuCtxSynchronize());
  if (piece.handle != 0 && number % 4 == 1) {  // either the mapping or the handle is released last
    CHECK(cuMemRelease(piece.handle));
    piece.handle = 0;
  }
  CHECK(cuMemUnmap(piece.address, piece.bytes));
  if (piece.handle != 0) CHECK(cuMemRelease(piece.handle));
  fill(piece, number, value);
}

// Counts words at the ends that are not `value`, read through another mapping; the piece's handle is unchanged.
unsigned look(const Piece& piece, unsigned value) {
  CUmemGenericAllocationHandle handle = 0;
  CHECK(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(piece.address + piece.bytes - 1)));
  if (piece.handle != 0 && handle != piece.handle) fail("a piece has another handle than before");
  CUdeviceptr alias = 0;
  CHECK(cuMemAddressReserve(&alias, piece.bytes, 0, 0, 0));
  CHECK(cuMemMap(alias, piece.bytes, 0, handle, 0));
  CHECK(cuMemRelease(handle));
  allow(alias, piece.bytes);
  unsigned wrong = 0;
  for (const CUdeviceptr address : {alias, alias + piece.bytes - kStride * sizeof(unsigned)}) {
    unsigned word = 0;
    CHECK(cuMemcpyDtoH_v2(&word, address, sizeof word));
    if (word != value) ++wrong;
  }
  CHECK(cuMemUnmap(alias, piece.bytes));
  CHECK(cuMemAddressFree(alias, piece.bytes));
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  Options options(argc, argv,
                  "segments [--share 0.6 | --bytes N[K|M|G]] [--rounds N | --seconds S] [--seed N] [--ahead N] "
                  "[--hold] [--still]");
  start();
  size_t free = 0;
  size_t total = 0;
  CHECK(cuMemGetInfo_v2(&free, &total));
  const auto share = static_cast<uint64_t>(options.number("--share", 0.6) * static_cast<double>(total));
  const uint64_t wanted = options.bytes("--bytes", share);
  const double duration = options.number("--seconds", 0);
  const auto rounds = static_cast<unsigned>(options.number("--rounds", duration > 0 ? 1 : 12));
  const unsigned first = 40 + static_cast<unsigned>(options.number("--seed", 1));
  const auto ahead = std::max(1U, static_cast<unsigned>(options.number("--ahead", 1)));
  const bool hold = options.flag("--hold");
  const bool still = options.flag("--still");
  options.end();
  struct sigaction action{};
  action.sa_handler = [](int) { terminated = 1; };
  if (hold) sigaction(SIGTERM, &action, nullptr);

  CUfunction memtouch = kernel("_Z8memtouchPjmmjS_");
  CUdeviceptr mismatches = 0;
  CHECK(cuMemAlloc_v2(&mismatches, sizeof(unsigned)));
  CHECK(cuMemsetD32_v2(mismatches, 0, 1));
  const uint64_t reserved = 2 * wanted / (2 * kMiB) * (2 * kMiB) + 64 * kMiB;
  CUdeviceptr begin = 0;
  CHECK(cuMemAddressReserve(&begin, reserved, 0, 0, 0));
  std::vector<Piece> pieces;
  uint64_t bytes = 0;
  while (bytes < wanted) {
    Piece piece{.address = begin + bytes, .bytes = (pieces.size() % 3 == 0 ? 2 : 20) * kMiB};
    fill(piece, pieces.size(), first);
    bytes += piece.bytes;
    pieces.push_back(piece);
  }
  CHECK(cuCtxSynchronize());

  const double started = seconds();
  unsigned round = 0;
  unsigned wrong_by_host = 0;
  const auto goes_on = [&] {
    if (hold) return terminated == 0 && (round == 0 || !program::stdin_closed());
    return round < rounds || seconds() - started < duration;
  };
  for (; goes_on(); ++round) {
    unsigned expected = first + round;
    unsigned long words = bytes / sizeof(unsigned);
    unsigned long stride = kStride;
    void* parameters[] = {&begin, &words, &stride, &expected, &mismatches};
    CHECK(cuLaunchKernel(memtouch, 64, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
    if (round % ahead == ahead - 1 || (round == 0 && hold)) CHECK(cuCtxSynchronize());
    if (round == 0 && hold) {
      std::printf("ready\n");
      std::fflush(stdout);
    }
    if (still) continue;
    const size_t number = round % pieces.size();
    if (round % 4 == 1) wrong_by_host += look(pieces[number], expected + 1);
    if (round % 4 == 3) replace(pieces[number], number, expected + 1);
  }
  CHECK(cuCtxSynchronize());
  const double took = seconds() - started;
  unsigned wrong = 0;
  CHECK(cuMemcpyDtoH_v2(&wrong, mismatches, sizeof wrong));
  for (const Piece& piece : pieces) wrong_by_host += look(piece, first + round);
  wrong += wrong_by_host;
  for (const Piece& piece : pieces) {
    if (piece.handle != 0) CHECK(cuMemRelease(piece.handle));
  }
  CHECK(cuMemUnmap(begin, bytes));  // all of them at once
  CHECK(cuMemAddressFree(begin, reserved));
  std::printf("{\"rounds\":%u,\"seconds\":%.6f,\"wrong\":%u,\"bytes\":%llu}\n", round, took, wrong,
              static_cast<unsigned long long>(bytes));
  return wrong == 0 ? 0 : 1;
}
