// Holds GPU memory and writes all of it anew in every round: each word says where in the memory it is and in which
// round it was written, and every word is checked before. So every move of the memory is a full one, and extents that
// were exchanged or are older than they should be are noticed.
//
//   renewer --bytes N[K|M|G] [--piece 256M] [--own] [--graphs N] [--seed N]
//           [--rounds N | --seconds S [--wait] | --hold | --asked] [--late]
//
// --own takes the pieces by cuMemCreate, else by cuMemAlloc. --graphs instantiates N graphs, each of which is a round
// (kernels, a memset and a copy), and launches them in turn. Prints "ready" after the first round; --wait goes on
// only once a line of standard input has come, --hold until standard input closes. --asked works a round for each line,
// answers each with the line of JSON below, and ends with standard input. --late prints "context" when it has its
// context, and takes memory after a line. Ends with {"rounds":…,"seconds":…,"wrong":…,"bytes":…}; any wrong word makes
// the exit status 1, and too little memory 2.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

namespace {

constexpr uint64_t kGranularity = uint64_t{2} << 20;  // of cuMemCreate
constexpr unsigned kSpread = 2654435761U;             // as in the kernel

void take(CUresult result, const char* what, uint64_t bytes) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    std::fprintf(stderr, "renewer: %s of %llu bytes: CUDA_ERROR_OUT_OF_MEMORY\n", what,
                 static_cast<unsigned long long>(bytes));
    std::exit(2);  // NOLINT(concurrency-mt-unsafe)
  }
  check(result, what);
}

struct Piece {
  CUdeviceptr address = 0;
  unsigned long words = 0;
  unsigned long first = 0;  // number of its first word
};

Piece allocate(uint64_t bytes, bool own) {
  Piece piece{.words = bytes / sizeof(unsigned)};
  if (!own) {
    take(cuda().cuMemAlloc_v2(&piece.address, bytes), "cuMemAlloc", bytes);
    return piece;
  }
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  take(cuda().cuMemCreate(&handle, bytes, &what, 0), "cuMemCreate", bytes);
  CHECK(cuMemAddressReserve(&piece.address, bytes, 0, 0, 0));
  CHECK(cuMemMap(piece.address, bytes, 0, handle, 0));
  CHECK(cuMemRelease(handle));
  CUmemAccessDesc access{};
  access.location = what.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CHECK(cuMemSetAccess(piece.address, bytes, &access, 1));
  return piece;
}

// Memory, and the rounds over it.
class Memory {
 public:
  Memory(uint64_t bytes, uint64_t piece_bytes, bool own, unsigned seed) {
    CHECK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc_v2(&state_, 4 * sizeof(unsigned)));
    CHECK(cuMemsetD32Async(state_, seed * 0x01000193U, 1, stream_));
    for (uint64_t taken = 0; taken < bytes; taken += piece_bytes) {
      Piece piece = allocate(std::min(piece_bytes, bytes - taken), own);
      piece.first = taken / sizeof(unsigned) + 1;  // word 0 is the round's
      pieces_.push_back(piece);
    }
    round();  // writes what the next one expects
    CHECK(cuMemsetD32Async(mismatches(), 0, 1, stream_));
    CHECK(cuStreamSynchronize(stream_));
  }

  void instantiate(unsigned count) {
    for (unsigned number = 0; number < count; ++number) {
      CUgraph graph = nullptr;
      CUgraphExec executable = nullptr;
      CHECK(cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
      submit(false);
      CHECK(cuMemsetD32Async(scratch(), number, 1, stream_));
      CHECK(cuMemcpyDtoHAsync_v2(&seen_, scratch(), sizeof seen_, stream_));
      CHECK(cuStreamEndCapture(stream_, &graph));
      check(program::instantiate(&executable, graph), "cuGraphInstantiate");
      CHECK(cuGraphDestroy(graph));
      graphs_.push_back(executable);
    }
  }

  void round() {
    if (graphs_.empty()) {
      submit(true);
    } else {
      CHECK(cuGraphLaunch(graphs_[next_], stream_));
    }
    CHECK(cuStreamSynchronize(stream_));
    if (!graphs_.empty() && seen_ != next_) fail("a graph has copied %u for %zu", seen_, next_);
    if (!graphs_.empty()) next_ = (next_ + 1) % graphs_.size();
  }

  unsigned wrong() const {
    unsigned words = 0;
    CHECK(cuMemcpyDtoH_v2(&words, mismatches(), sizeof words));
    return words;
  }

  // Looked at by the host, the ends of every piece.
  unsigned wrong_at_the_end() const {
    unsigned now = 0;
    unsigned words = 0;
    CHECK(cuMemcpyDtoH_v2(&now, state_, sizeof now));
    for (const Piece& piece : pieces_) {
      for (const unsigned long at : {0UL, piece.words - 1}) {
        unsigned word = 0;
        CHECK(cuMemcpyDtoH_v2(&word, piece.address + at * sizeof word, sizeof word));
        if (word != static_cast<unsigned>(piece.first + at) * kSpread + now) ++words;
      }
    }
    return words;
  }

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Piece& piece : pieces_) sum += piece.words * sizeof(unsigned);
    return sum;
  }

 private:
  CUdeviceptr mismatches() const { return state_ + sizeof(unsigned); }
  CUdeviceptr scratch() const { return state_ + 2 * sizeof(unsigned); }

  // `waits`: after each piece, so that little is in flight when a turn ends.
  void submit(bool waits) {
    for (const Piece& piece : pieces_) {
      renew(piece, 4096, 256);
      if (waits) CHECK(cuStreamSynchronize(stream_));
    }
    renew({.address = state_, .words = 1, .first = 0}, 1, 1);
  }

  void renew(Piece piece, unsigned blocks, unsigned threads) {
    CUdeviceptr wrong = mismatches();
    void* parameters[] = {&piece.address, &piece.words, &piece.first, &state_, &wrong};
    CHECK(cuLaunchKernel(renew_, blocks, 1, 1, threads, 1, 1, 0, stream_, parameters, nullptr));
  }

  CUfunction renew_ = kernel("_Z5renewPjmmPKjS_");
  CUstream stream_ = nullptr;
  CUdeviceptr state_ = 0;  // the round's number, wrong words, scratch
  std::vector<Piece> pieces_;
  std::vector<CUgraphExec> graphs_;
  size_t next_ = 0;
  unsigned seen_ = 0;
};

void say(const char* line) {
  std::puts(line);
  std::fflush(stdout);
}

bool told() {
  char line[80];
  return std::fgets(line, sizeof line, stdin) != nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  Options options(argc, argv,
                  "renewer --bytes N[K|M|G] [--piece 256M] [--own] [--graphs N] [--seed N] "
                  "[--rounds N | --seconds S [--wait] | --hold | --asked] [--late]");
  start();
  uint64_t bytes = options.bytes("--bytes", uint64_t{64} << 20);
  const uint64_t piece = std::min(options.bytes("--piece", uint64_t{256} << 20), bytes);
  const bool own = options.flag("--own");
  const auto graphs = static_cast<unsigned>(options.number("--graphs", 0));
  const auto seed = static_cast<unsigned>(options.number("--seed", 1));
  const double duration = options.number("--seconds", 0);
  const auto rounds = static_cast<unsigned>(options.number("--rounds", duration > 0 ? 1 : 10));
  const bool waits = options.flag("--wait");
  const bool hold = options.flag("--hold");
  const bool asked = options.flag("--asked");
  const bool late = options.flag("--late");
  options.end();
  if (own) bytes = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  if (late) {
    CHECK(cuCtxSynchronize());
    say("context");
    if (!told()) return 0;
  }
  Memory memory(bytes, piece, own, seed);
  memory.instantiate(graphs);
  say("ready");
  if (waits && !told()) return 0;
  const double began = seconds();
  unsigned done = 0;
  const auto answer = [&](unsigned wrong) {
    std::printf("{\"rounds\":%u,\"seconds\":%.6f,\"wrong\":%u,\"bytes\":%llu}\n", done, seconds() - began, wrong,
                static_cast<unsigned long long>(memory.bytes()));
    std::fflush(stdout);
    return wrong == 0 ? 0 : 1;
  };
  const auto goes_on = [&] {
    if (hold) return !stdin_closed();
    return asked ? told() : done < rounds || seconds() - began < duration;
  };
  while (goes_on()) {
    memory.round();
    ++done;
    if (asked) answer(memory.wrong());
  }
  if (asked) return memory.wrong() == 0 ? 0 : 1;
  return answer(memory.wrong() + memory.wrong_at_the_end());
}
