// A program that reads its results back while it exits: handlers compare every word of its memory.
//
//   results_at_exit [--bytes N[K|M|G] | --share 0.5] [--pieces 8] [--when before | after] [--ends]
//
// Sets its memory, says "ready", and exits once stdin closes. The handler "before" is registered once there is a
// context, and so runs before rota's own, which is registered with the first one; "after" is registered earlier, and
// runs after it. Both are, unless --when says which. Each prints a line, "before: N words, M wrong"; a word that is
// wrong makes the exit status 1. With --ends, stdin is not waited for.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

namespace {

struct Piece {
  CUdeviceptr address;
  uint64_t words;
};
std::vector<Piece>& pieces() {
  static auto* const all = new std::vector<Piece>;  // there when handlers run
  return *all;
}

// Each word of a piece has this value.
unsigned value_of(std::size_t piece) {
  return 0x5eed0000U + static_cast<unsigned>(piece);
}

// Not fail(): exit() may not be called by a handler.
void read_back(const char* when) {
  static auto* const here = new std::vector<unsigned>;
  uint64_t words = 0;
  uint64_t wrong = 0;
  for (std::size_t piece = 0; piece < pieces().size(); ++piece) {
    const auto& [address, count] = pieces()[piece];
    here->assign(count, 0);
    const CUresult result = cuda().cuMemcpyDtoH_v2(here->data(), address, count * sizeof(unsigned));
    if (result != CUDA_SUCCESS)
      std::fprintf(stderr, "%s: piece %zu: error %d\n", when, piece, static_cast<int>(result));
    words += count;
    wrong += count - static_cast<uint64_t>(std::count(here->begin(), here->end(), value_of(piece)));
  }
  std::printf("%s: %llu words, %llu wrong\n", when, static_cast<unsigned long long>(words),
              static_cast<unsigned long long>(wrong));
  std::fflush(stdout);
  if (wrong != 0) _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  Options options(argc, argv,
                  "results_at_exit [--bytes N[K|M|G] | --share 0.5] [--pieces 8] [--when before | after] [--ends]");
  const uint64_t given = options.bytes("--bytes", 0);
  const double share = options.number("--share", 0.5);
  const auto count = static_cast<std::size_t>(options.number("--pieces", 8));
  const std::string when = options.text("--when", "");
  const bool ends = options.flag("--ends");
  options.end();
  if (!when.empty() && when != "before" && when != "after") fail("--when %s: before, or after", when.c_str());
  CHECK(cuInit(0));
  // The driver's own handlers are registered by now.
  if (when != "before" && std::atexit([] { read_back("after"); }) != 0) fail("no room for an exit handler");
  start();
  if (when != "after" && std::atexit([] { read_back("before"); }) != 0) fail("no room for an exit handler");
  std::size_t free = 0;
  std::size_t total = 0;
  CHECK(cuMemGetInfo_v2(&free, &total));
  const uint64_t bytes = given != 0 ? given : static_cast<uint64_t>(share * static_cast<double>(total));
  const uint64_t words = bytes / count / sizeof(unsigned);
  for (std::size_t piece = 0; piece < count; ++piece) {
    CUdeviceptr address = 0;
    CHECK(cuMemAlloc_v2(&address, words * sizeof(unsigned)));
    CHECK(cuMemsetD32_v2(address, value_of(piece), words));
    pieces().push_back({address, words});
  }
  CHECK(cuCtxSynchronize());
  std::printf("ready\n");
  std::fflush(stdout);
  while (!ends && std::getchar() != EOF) {
  }
  return 0;
}
