// The first CUDA call of a process ends here: find the real driver, load the core, fill every slot, jump on.
//
// Several threads may come at once, one of them perhaps from the constructor of a library that is being loaded, that
// is, under the loader's lock. So everything that needs the loader (opening the driver and the core, looking symbols
// up) runs without a lock of rota's: each thread does it for itself, the loader gives all of them the same results, and
// they write the same values. Only the core's attach is claimed by one thread, and attach must not need the loader
// (attachment.h); the others wait for it, but not forever: a thread that has waited too long makes that one call with
// the real function.
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/preload/attachment.h"
#include "runtime/preload/core_library.h"
#include "runtime/preload/cuda/running_test.h"
#include "runtime/preload/cuda/thin.h"
#include "runtime/preload/object.h"
#include "runtime/preload/off.h"
#include "runtime/preload/symbol_list.h"

namespace rota::thin {
namespace {

// CUresult values, as in cuda.h.
constexpr int kNotInitialized = 3;
constexpr int kNoDevice = 100;
constexpr int kNotSupported = 801;

int no_device() noexcept {
  return kNoDevice;
}  // cuInit without a driver
int not_initialized() noexcept {
  return kNotInitialized;
}  // everything else without a driver
int not_supported() noexcept {
  return kNotSupported;
}  // for a function that the driver does not have

void* real[kSymbolCount];
uint8_t available[kSymbolCount];
void* driver_handle;  // of dlopen; null without a driver
char driver_path[kPathBytes];
char driver_detail[sizeof(Driver::detail)];
RotaAttachment attachment;
RotaNoteUnknown* note_unknown;  // the core's, once it is attached

// 0: not attached; kAttached; otherwise the process whose thread `attaching_thread` is attaching. It includes the
// process because a fork at that moment leaves the child with a claim that no thread will complete.
constexpr int kAttached = -1;
int attach_state;
int attaching_thread;

// How long a thread waits for another one's attach, which takes well under a millisecond, before it gives up.
constexpr time_t kAttachPatienceSeconds = 5;

int thread_id() noexcept {
  return static_cast<int>(syscall(SYS_gettid));
}

// Fills real[] and available[]; idempotent.
void look_up_functions(const Driver& driver) noexcept {
  __atomic_store_n(&driver_handle, driver.handle, __ATOMIC_RELEASE);
  const char* name = kSymbolListNames;
  for (uint32_t index = 0; index < kSymbolCount; ++index, name += strlen(name) + 1) {
    void* function = driver.handle != nullptr ? foreign_symbol(driver.handle, name) : nullptr;
    const uint8_t found = function != nullptr ? 1 : 0;
    if (driver.handle == nullptr) {
      function = reinterpret_cast<void*>(index == kIndex_cuInit ? &no_device : &not_initialized);
    } else if (function == nullptr) {
      function = reinterpret_cast<void*>(&not_supported);
    }
    __atomic_store_n(&real[index], function, __ATOMIC_RELAXED);
    __atomic_store_n(&available[index], found, __ATOMIC_RELAXED);
  }
}

// Its attach function is null where rota is switched off, and where there is no usable core next to this library:
// `failure` then says why.
struct Core {
  RotaCoreAttach* attach = nullptr;
  const char* failure = nullptr;
  char path[kPathBytes] = "librota-core.so";
};

void open_core(Core& core) noexcept {
  if (is_off()) return;
  if (!path_beside_us("librota-core.so", core.path)) {
    core.failure = "the loader does not say where librota.so lies";
    return;
  }
  void* const library = open_core_library(core.path, RTLD_NOW | RTLD_LOCAL, core.failure);
  if (library == nullptr) return;
  core.attach = reinterpret_cast<RotaCoreAttach*>(foreign_symbol(library, ROTA_CORE_ATTACH_NAME));
  if (core.attach == nullptr) core.failure = "it has no " ROTA_CORE_ATTACH_NAME;
}

// Called by the one thread that claimed it.
void attach(const Driver& driver, const Core& core) noexcept {
  memcpy(driver_path, driver.path, strlen(driver.path) + 1);
  memcpy(driver_detail, driver.detail, strlen(driver.detail) + 1);
  attachment.version = kRotaAttachmentVersion;
  attachment.symbol_count = kSymbolCount;
  attachment.symbol_list = kSymbolListHash;
  attachment.slots = rota_slots;
  attachment.real = real;
  attachment.available = available;
  attachment.thunks = rota_thunks_begin;
  attachment.thunk_stride = kThunkStride;
  attachment.driver_state = driver.state;
  attachment.driver_path = driver_path;
  attachment.detail = driver_detail;
  attachment.note_unknown = &note_unknown;
  attachment.before_load = before_load_callback();
  attachment.test = running_test();
  attachment.standard_error = standard_error_at_start();
  if (core.attach != nullptr && core.attach(&attachment) == 0) return;
  if (core.failure != nullptr) say_core_unusable(core.path, core.failure, "CUDA calls go to the driver without rota");
  for (uint32_t index = 0; index < kSymbolCount; ++index) {
    __atomic_store_n(&rota_slots[index], real[index], __ATOMIC_RELEASE);
  }
}

// False after kAttachPatienceSeconds without progress.
bool wait_while_attaching(int seen) noexcept {
  const timespec patience{kAttachPatienceSeconds, 0};
  return syscall(SYS_futex, &attach_state, FUTEX_WAIT_PRIVATE, seen, &patience, nullptr, 0) == 0 || errno != ETIMEDOUT;
}

// Once real[] is filled. Returns false if this call has to be made with the real function.
bool attach_once(const Driver& driver, const Core& core) noexcept {
  const int process = getpid();
  for (;;) {
    int seen = __atomic_load_n(&attach_state, __ATOMIC_ACQUIRE);
    if (seen == kAttached) return true;
    if (seen != process) {
      if (!__atomic_compare_exchange_n(&attach_state, &seen, process, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        continue;
      __atomic_store_n(&attaching_thread, thread_id(), __ATOMIC_RELAXED);
      attach(driver, core);
      __atomic_store_n(&attach_state, kAttached, __ATOMIC_RELEASE);
      syscall(SYS_futex, &attach_state, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
      return true;
    }
    if (__atomic_load_n(&attaching_thread, __ATOMIC_RELAXED) == thread_id()) return false;
    if (!wait_while_attaching(seen)) return false;
  }
}

// The real function behind a spare thunk, by the name that the fitted copy gave to the thunk, which the loader knows.
// Null if there is none.
void* look_up_spare(uint32_t index, const char** name) noexcept {
  *name = name_at(rota_thunks_begin + size_t{index} * kThunkStride);
  if (*name == nullptr) return nullptr;
  return foreign_symbol(__atomic_load_n(&driver_handle, __ATOMIC_ACQUIRE), *name);
}

// A spare's first call, or one of several at once. From then on the slot leads straight to the driver.
void* resolve_spare(uint32_t index, bool attached) noexcept {
  static uint8_t noted[kSpareCount];
  const char* name = nullptr;
  void* function = look_up_spare(index, &name);
  if (function == nullptr) {
    return reinterpret_cast<void*>(driver_handle == nullptr ? &not_initialized : &not_supported);
  }
  if (!attached) return function;
  if (auto* note = __atomic_load_n(&note_unknown, __ATOMIC_ACQUIRE)) {
    note(name, __atomic_exchange_n(&noted[index - kSymbolCount], 1, __ATOMIC_RELAXED) == 0);
  }
  __atomic_store_n(&rota_slots[index], function, __ATOMIC_RELEASE);
  return function;
}

// An export that no header declares. The core does not fill such a slot, so that the call which ends here can be noted.
bool is_undeclared(uint32_t index) noexcept {
#define ROTA_UNDECLARED(name) \
  if (index == kIndex_##name) return true;
#include "generated/driver_undeclared.inc"
#undef ROTA_UNDECLARED
  return false;
}

// Its first call, or one of several at once, of a process whose core is attached.
void* resolve_undeclared(uint32_t index) noexcept {
  auto* note = __atomic_load_n(&note_unknown, __ATOMIC_ACQUIRE);
  if (note != nullptr && available[index] != 0) {
    const char* name = kSymbolListNames;
    for (uint32_t before = 0; before < index; ++before) name += strlen(name) + 1;
    static uint8_t noted[kSymbolCount];
    note(name, __atomic_exchange_n(&noted[index], 1, __ATOMIC_RELAXED) == 0);
  }
  __atomic_store_n(&rota_slots[index], real[index], __ATOMIC_RELEASE);
  return real[index];
}

}  // namespace

// From a stub, by way of rota_resolver_entry: returns where the call goes on.
extern "C" ROTA_HIDDEN void* rota_resolve(uint32_t index) noexcept {
  const int saved = errno;
  bool attached = __atomic_load_n(&attach_state, __ATOMIC_ACQUIRE) == kAttached;
  if (!attached) {
    Driver driver;
    find_driver(driver);
    look_up_functions(driver);
    Core core;
    open_core(core);
    attached = attach_once(driver, core);
  }
  void* function = nullptr;
  if (index >= kSymbolCount) {
    function = resolve_spare(index, attached);
  } else if (attached && is_undeclared(index)) {
    function = resolve_undeclared(index);
  } else {
    function = __atomic_load_n(attached ? &rota_slots[index] : &real[index], __ATOMIC_ACQUIRE);
  }
  errno = saved;
  return function;
}

}  // namespace rota::thin
