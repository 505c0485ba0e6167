// dlopen, which thunks.S exports as a tail jump to the next dlopen: this file decides which name it gets.
//
// A plain "libcuda.so.1" finds this library by its SONAME without our help. "libcuda.so" (what development machines
// have) and paths to a driver do not, so those names become "libcuda.so.1". A path to a file that is not there stays as
// it is: the program gets the failure, and the message, that it would have got without rota.
//
// The core is told before each dlopen: a library may let devices reach GPU memory that is not there at that moment.
//
// Files that a driver opens are not redirected. Under WSL libcuda.so.1 is a loader, which opens the driver proper by
// its path: if that led here, its calls would return to it through rota's thunks in an endless loop.
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "runtime/preload/cuda/thin.h"

namespace rota::thin {
namespace {

RotaBeforeLoad* before_load;  // the core's, once it is attached

constexpr char kShimName[] = "libcuda.so.1";
constexpr char kPlainName[] = "libcuda.so";

void* no_dlopen(const char*, int) noexcept {
  return nullptr;
}

// libcuda.so, libcuda.so.1, or libcuda.so.580.159.04
bool names_driver(const char* base) noexcept {
  if (strncmp(base, kPlainName, sizeof kPlainName - 1) != 0) return false;
  const char* rest = base + sizeof kPlainName - 1;
  return rest[0] == '\0' || (rest[0] == '.' && rest[1] != '\0' && rest[strspn(rest, ".0123456789")] == '\0');
}

const char* base_name(const char* path) noexcept {
  const char* slash = strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

// Whether the code at `caller` belongs to a driver: a file with a driver's name, the file that was found to be the
// driver (ROTA_REAL_LIBCUDA may have any name), or any code that runs in this thread while that is being opened.
bool is_driver(const void* caller) noexcept {
  if (this_thread_opens_driver()) return true;
  bool holds_driver = false;
  const char* file = file_of(caller, driver_code(), &holds_driver);
  return file != nullptr && (holds_driver || names_driver(base_name(file)));
}

bool is_for_us(const char* name, const void* caller) noexcept {
  if (name == nullptr || !names_driver(base_name(name)) || is_driver(caller)) return false;
  if (strchr(name, '/') == nullptr) return true;
  const int saved = errno;
  const bool exists = access(name, F_OK) == 0;
  errno = saved;
  return exists;
}

// The core brings memory back that a library may let devices reach. What a driver opens is none of that.
void tell_core(const char* name) noexcept {
  auto* const call = __atomic_load_n(&before_load, __ATOMIC_ACQUIRE);
  if (call == nullptr || name == nullptr || this_thread_opens_driver()) return;
  const int saved = errno;
  call(name);
  errno = saved;
}

}  // namespace

RotaBeforeLoad** before_load_callback() noexcept {
  return &before_load;
}

// Returned in two registers, which the tail jump relies on.
struct DlopenTarget {
  const char* name;
  void* function;
};
static_assert(sizeof(DlopenTarget) == 16);

extern "C" ROTA_HIDDEN DlopenTarget rota_dlopen_target(const char* name, const void* caller, int mode) noexcept {
  static void* next;
  void* function = __atomic_load_n(&next, __ATOMIC_RELAXED);
  if (function == nullptr) {
    function = next_symbol("dlopen");
    if (function == nullptr) function = reinterpret_cast<void*>(&no_dlopen);
    __atomic_store_n(&next, function, __ATOMIC_RELAXED);
  }
  if ((mode & RTLD_NOLOAD) == 0) tell_core(name);
  return {is_for_us(name, caller) ? kShimName : name, function};
}

}  // namespace rota::thin
