// A program on the simulated GPU in a child process, with rota's core in front of it as `rota run` puts it there, or
// without: its calls of `cu` go through the slots that the core fills, and the ledger is there to look at.
//
// The child reports by text: what was expected and is not so (EXPECT), and whatever it notes for a comparison.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "generated/driver_functions.h"
#include "generated/driver_symbols.h"
#include "generated/driver_types.h"
#include "runtime/core/runtime.h"

namespace rota::test {

using namespace api;  // NOLINT(google-build-using-namespace): the names are CUDA's own

inline constexpr std::uint64_t kMiB = 1 << 20;
inline constexpr std::uint64_t kGpuBytes = 256 * kMiB;
inline constexpr std::uint64_t kContextBytes = kMiB;
inline const CUstream kPerThread = reinterpret_cast<CUstream>(std::uintptr_t{2});  // CU_STREAM_PER_THREAD

// The driver's functions by their exact names.
struct Cuda {
#define ROTA_UNDECLARED(name) using name##_fn = CUresult();
#include "generated/driver_undeclared.inc"
#undef ROTA_UNDECLARED
#define ROTA_SYMBOL(name) name##_fn* name;
#include "generated/driver_symbols.inc"
#undef ROTA_SYMBOL
};
extern Cuda cu;

enum class Mode : std::uint8_t {
  kBare,     // without rota
  kNative,   // ROTA_MEMORY
  kManaged,  // ROTA_MEMORY
  kSwap,     // ROTA_MEMORY
};
const char* name_of(Mode mode);
inline const char* name_of(Symbol symbol) {
  return kSymbolNames[static_cast<std::size_t>(symbol)];
}

struct Machine {
  Mode mode = Mode::kNative;
  std::string limit;  // ROTA_GPU_MEM_LIMIT; none: as much as there is
  // A function of the driver that is called in place of simgpu's, or null to leave that one: asked once for each symbol
  // before the core attaches.
  std::function<void*(Symbol symbol, void* simulated)> replace;
  // Runs in a process beside the child, on the same machine without rota, before the child's program: what it returns
  // is in `from_neighbour`. It ends when the child does.
  std::function<std::string()> neighbour;
  std::uint64_t gpu_bytes = kGpuBytes;  // of each of the two
  std::string profile = {};             // what a profile says besides its base, in TOML; empty: the usual card
};

// What the child reports, which has two GPUs and has called cuInit. How it died, if it did.
std::string on_simgpu(const Machine& machine, const std::function<void()>& program);

// --- in the child

extern std::string from_neighbour;
Mode mode();
void note(const std::string& line);
bool expect(bool holds, const std::string& text, const char* file, int line);
#define EXPECT(...) rota::test::expect(static_cast<bool>(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)
#define EXPECT_OK(call) rota::test::expect_result(rota::test::CUDA_SUCCESS, (call), #call, __FILE__, __LINE__)
#define EXPECT_RESULT(expected, call) rota::test::expect_result((expected), (call), #call, __FILE__, __LINE__)
bool expect_result(CUresult expected, CUresult result, const char* text, const char* file, int line);

// A primary context of a GPU, made current.
CUcontext enter(int device);

// Bytes that the ledger charges to a GPU. Without rota: 0.
std::uint64_t charged(int device);
// Charged to GPU 0 and to GPU 1, and nothing elsewhere.
bool charged_exactly(std::uint64_t gpu0, std::uint64_t gpu1);
// Entries that are not on their way back to the driver, of any kind, of either GPU or nobody's.
std::size_t live_entries();
// Everything was given back: nothing is charged, and no entry lives. (What was freed in the order of a stream and has
// been reached may still wait for the driver to take it.)
void expect_empty_books(const char* file, int line);
#define EXPECT_EMPTY_BOOKS() rota::test::expect_empty_books(__FILE__, __LINE__)

}  // namespace rota::test
