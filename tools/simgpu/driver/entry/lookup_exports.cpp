// Looking up functions: cuGetProcAddress from the generated table, export tables, error names, and the result of every
// function that is not simulated.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "generated/driver_symbols.h"
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/entry/posed.h"
#include "tools/simgpu/reach_check.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace
using rota::kSymbolCount;
using rota::kSymbolNames;
using rota::kSymbolSince;

extern "C" {
CUresult rota_sim_future_call(int* answer);
CUresult rota_sim_future_fill_async(CUdeviceptr to, unsigned value, size_t words, CUstream stream);
extern void* const rota_sim_exports[];  // exports.S: the functions, in the order of the symbols
CUresult rota_sim_unsupported(unsigned index) __attribute__((visibility("hidden")));
}

namespace {

struct Row {
  const char* base;
  int version;  // from this one on, until the next row of the same base and form
  int form;
  rota::Symbol symbol;
};

constexpr Row kRows[] = {
#define ROTA_LOOKUP(base, version, form, symbol) {#base, version, form, rota::Symbol::k_##symbol},
#include "generated/driver_lookup.inc"
#undef ROTA_LOOKUP
};

std::atomic<unsigned> unsupported_calls[kSymbolCount];
std::atomic<int> unsupported_process{0};  // the process that made the first of these calls

// Writes one line to ROTA_SIM_LOG.
void write_log(const char* line) {
  const std::string& log = driver().options.log;
  if (log.empty()) return;
  int file = log == "-" ? STDERR_FILENO : open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) file = STDERR_FILENO;  // stderr is better than nothing
  if (write(file, line, std::strlen(line)) < 0) {
    // The log is only informative; losing it must not change the call's result.
  }
  if (file != STDERR_FILENO) close(file);
}

void* future_function(const char* name) {
  void* const functions[] = {reinterpret_cast<void*>(&rota_sim_future_call),
                             reinterpret_cast<void*>(&rota_sim_future_fill_async)};
  static_assert(std::size(functions) == std::size(kFutureExports));
  for (size_t index = 0; index < std::size(kFutureExports); ++index) {
    if (std::strcmp(kFutureExports[index].name, name) == 0) return functions[index];
  }
  return nullptr;
}

CUresult get_proc_address(const char* symbol, void** function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* status) {
  int own_version = driver().options.driver_version;
  if (symbol == nullptr || function == nullptr || flags > 2) return CUDA_ERROR_INVALID_VALUE;
  if (version > own_version) return CUDA_ERROR_INVALID_VALUE;
  int form = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? 2 : 0;
  if (mutated(Mutation::lookup_ignores_flags)) form = 0;
  if (mutated(Mutation::lookup_ignores_versions)) version = own_version;
  *function = nullptr;
  bool known = false;
  // The rows of a base are adjacent and sorted by version; the last one that is not too new applies.
  for (const Row& row : kRows) {
    if (std::strcmp(row.base, symbol) != 0 || row.form != form) continue;
    if (!exports(own_version, kSymbolSince[static_cast<size_t>(row.symbol)])) continue;
    known = true;
    if (row.version <= version) *function = rota_sim_exports[static_cast<size_t>(row.symbol)];
  }
  for (size_t index = 0; mutated(Mutation::lookup_takes_versioned_names) && index < kSymbolCount; ++index) {
    if (std::strcmp(kSymbolNames[index], symbol) == 0) *function = rota_sim_exports[index];
  }
  if (!known && has_future_exports(own_version)) {
    void* future = future_function(symbol);
    known = future != nullptr;
    if (has_future_exports(version)) *function = future;
  }
  if (status != nullptr) {
    *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : known              ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                   : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return CUDA_SUCCESS;  // also if nothing was found: the status says so
}

}  // namespace

// The target of calls that are not simulated. Each name is logged at its first call.
CUresult rota_sim_unsupported(unsigned index) {
  if (index < kSymbolCount && unsupported_calls[index].fetch_add(1) == 0) {
    int none = 0;
    unsupported_process.compare_exchange_strong(none, getpid());
    char line[160];
    std::snprintf(line, sizeof line, "simgpu: not simulated: %s\n", kSymbolNames[index]);
    write_log(line);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

namespace {
// Logs at the process's exit how often each was called.
[[gnu::destructor]] void log_unsupported_calls() {
  if (unsupported_process.load() != getpid()) return;  // no such call, or only in this child's parent
  for (size_t index = 0; index < kSymbolCount; ++index) {
    unsigned calls = unsupported_calls[index].load();
    if (calls == 0) continue;
    char line[160];
    std::snprintf(line, sizeof line, "simgpu: calls that were not simulated: %s %u\n", kSymbolNames[index], calls);
    write_log(line);
  }
}
}  // namespace

ROTA_SIM_EXPORT(cuGetProcAddress_v2)
(const char* symbol, void** function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  return get_proc_address(symbol, function, version, flags, status);
}
ROTA_SIM_EXPORT(cuGetProcAddress)(const char* symbol, void** function, int version, cuuint64_t flags) {
  void* found = nullptr;
  CUresult result = get_proc_address(symbol, function != nullptr ? &found : nullptr, version, flags, nullptr);
  if (result != CUDA_SUCCESS) return result;
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;  // *function is left unchanged (seen on driver 580.159)
  *function = found;
  return CUDA_SUCCESS;
}

// NVIDIA's private tables are not imitated.
ROTA_SIM_EXPORT(cuGetExportTable)(const void** table, const CUuuid* id) {
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  if (std::memcmp(id->bytes, kReachCheckId.bytes, sizeof id->bytes) == 0) {
    static constexpr ReachCheck kReachCheck{sizeof kReachCheck,
                                            [](void (*watch)(uint64_t)) { driver().reach_watch = watch; }};
    *table = &kReachCheck;
    return CUDA_SUCCESS;
  }
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    std::fputs(
        "simgpu: NVIDIA's private tables were asked for, as a static CUDA runtime does: simgpu has none; compile the "
        "program with `nvcc -cudart shared`\n",
        stderr);
  }
  return CUDA_ERROR_NOT_FOUND;
}

ROTA_SIM_EXPORT(cuGetErrorName)(CUresult error, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = error_name(error);
  return *name != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ROTA_SIM_EXPORT(cuGetErrorString)(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = error_text(error);
  return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ROTA_SIM_EXPORT(cuProfilerStart)() {
  ROTA_SIM_CONTEXT(context);
  return CUDA_SUCCESS;  // no profiler is attached
}
ROTA_SIM_EXPORT(cuProfilerStop)() {
  ROTA_SIM_CONTEXT(context);
  return CUDA_SUCCESS;
}
