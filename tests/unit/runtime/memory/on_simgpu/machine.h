// A program on the simulated GPU in a child process, with rota's core in front of it as `rota run` puts it there, or
// without: its calls through `cu` go through the slots that the core fills, and the test can read the ledger.
//
// The child reports as text: each failed check (EXPECT), and whatever it notes for a comparison.
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
  // Returns the function to call in place of simgpu's, or null to keep simgpu's. Called once for each symbol, before
  // the core attaches.
  std::function<void*(Symbol symbol, void* simulated)> replace;
  // Runs in another process on the same machine, without rota, before the child's program. What it returns is in
  // `from_neighbour`. The process ends when the child does.
  std::function<std::string()> neighbour;
  std::uint64_t gpu_bytes = kGpuBytes;  // of each of the two
  std::string profile = {};             // what a profile says besides its base, in TOML; empty: the usual card
};

// Runs `program` in a child that has two GPUs and has called cuInit. Returns what it reports, or how it died.
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

// The bytes that the ledger counts on a GPU. Without rota: 0.
std::uint64_t charged(int device);
// Whether the ledger counts exactly this on GPU 0 and GPU 1, and nothing elsewhere.
bool charged_exactly(std::uint64_t gpu0, std::uint64_t gpu1);
// Entries that are not being freed: of any kind, and of either GPU or of none.
std::size_t live_entries();
// Checks that everything was freed: no bytes are counted, and no entry is live. (Memory freed in stream order whose
// free the stream has reached may still wait to be given to the driver.)
void expect_empty_books(const char* file, int line);
#define EXPECT_EMPTY_BOOKS() rota::test::expect_empty_books(__FILE__, __LINE__)

}  // namespace rota::test
