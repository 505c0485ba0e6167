// What the thin preload tells the core when it attaches it: plain C data, since the two are linked separately and may
// be of different builds (a version is checked on both sides).
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Raise it with every change of the struct.
enum { kRotaAttachmentVersion = 6 };

enum RotaDriverState {
  kRotaDriverFound = 0,
  // No libcuda.so.1 in any of the places that the loader and containers use.
  kRotaDriverNotFound = 1,
  // ROTA_REAL_LIBCUDA names something that is no usable driver; `detail` says why.
  kRotaDriverRefused = 2,
};

// What number 2 was when the process began, before any code of the program's own.
enum RotaStandardErrorState {
  kRotaStandardErrorUnknown = 0,
  kRotaStandardErrorClosed = 1,
  kRotaStandardErrorOpen = 2,
};
struct RotaStandardError {
  uint32_t state;
  uint64_t device, file;  // as fstat names it
};

// Called by the thin preload, at any time after attach and by any thread, before a function of the driver's that rota
// does not know is called for the first time. If several threads call at once, each calls it, one of them with `first`.
typedef void RotaNoteUnknown(const char* name, int first);

// Called by the thin preload, by any thread, before a library is loaded by dlopen: its name or path, as the program
// gave it. May wait.
typedef void RotaBeforeLoad(const char* name);

struct RotaAttachment {
  uint32_t version;
  uint32_t symbol_count;
  // kSymbolListHash (symbol_list.h): the names of the symbols, in their order.
  uint64_t symbol_list;
  // slots[i] is what thunk i jumps to. The core fills them (release stores); 8-byte aligned words.
  void** slots;
  // The real driver's functions in symbol order; never null: where the driver does not have one, a function that
  // returns an error.
  void* const* real;
  // available[i] is 1 where the real driver has the function.
  const uint8_t* available;
  // Thunk i lies at thunks + i * thunk_stride: the address that the shim exports under that name.
  char* thunks;
  uint32_t thunk_stride;
  uint32_t driver_state;  // RotaDriverState
  // Path of the real driver, or of the refused one, or "".
  const char* driver_path;
  // Why a driver was refused (one line, without a path), or "".
  const char* detail;
  // Where the core stores its callbacks for these (release stores).
  RotaNoteUnknown** note_unknown;
  RotaBeforeLoad** before_load;
  // Under ROTA_REPORT: what the test runner called the test, in this process's environment when it started, a line for
  // each runner, the outer one first; at most 511 bytes; else "".
  //   bazel TEST_TARGET[ shard TEST_SHARD_INDEX][ of TEST_TOTAL_SHARDS][ attempt TEST_RUN_NUMBER]
  //   pytest PYTEST_CURRENT_TEST without the phase
  const char* test;
  // As long as the process lives.
  const struct RotaStandardError* standard_error;
};

// Returns 0 once every slot is filled. Any other value: the core changed no slot and the thin preload points them at
// the real functions. Called once per process image, by one thread, not under the loader's lock, and must not take it
// (no dlopen, no dlsym, no thread_local with a destructor): a library's constructor that calls CUDA may be waiting for
// us under that lock. Must not wait for other threads or processes either.
typedef int RotaCoreAttach(const struct RotaAttachment* attachment);
#define ROTA_CORE_ATTACH_NAME "rota_core_attach"

#ifdef __cplusplus
}
#endif
