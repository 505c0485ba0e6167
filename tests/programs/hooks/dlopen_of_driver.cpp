// Replaces dlopen: a call that opens any libcuda gets the one that the search order has. Counts by dlsym, too, as it
// looks for the next dlopen at every call.
#include "tests/programs/hooks/hook.h"

extern "C" void* dlopen(const char* name, int mode) noexcept {
  auto* const next = reinterpret_cast<hook::Dlopen*>(dlsym(RTLD_NEXT, "dlopen"));
  const bool driver = name != nullptr && strstr(name, "libcuda.so") != nullptr;
  if (driver) hook::called("dlopen of the driver");
  return next(driver ? "libcuda.so.1" : name, mode);
}
