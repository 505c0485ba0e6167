// A driver of a handful of functions for the tests of interposing: what they need to see is which library answered,
// with which arguments. SONAME libcuda.so.1, like the real one, and bound to its own symbols like it.
//   TEST_DRIVER_OLD  built without cuGetProcAddress, as drivers before CUDA 11.3
//   TEST_DRIVER_11   built with the first form of it only, as drivers from 11.3 to 11.8
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "wide.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kInvalidValue = 1;
constexpr int kNotFound = 500;

#if defined(TEST_DRIVER_OLD)
constexpr int kVersion = 11020;
#elif defined(TEST_DRIVER_11)
constexpr int kVersion = 11080;
#else
constexpr int kVersion = 13000;
#endif

int initialized;

}  // namespace

EXPORT int cuInit(unsigned flags) {
  if (flags != 0) return kInvalidValue;
  __atomic_add_fetch(&initialized, 1, __ATOMIC_RELAXED);
  return 0;
}

EXPORT int cuDriverGetVersion(int* version) {
  if (version == nullptr) return kInvalidValue;
  *version = kVersion;
  return 0;
}

EXPORT int cuDeviceGetCount(int* count) {
  *count = __atomic_load_n(&initialized, __ATOMIC_RELAXED);
  return 0;
}

// Represents functions of any signature: six integers and eight vectors in registers, the rest on the stack.
EXPORT int cuProfilerInitialize(long a, double b, const char* c, double d, long e, float f, long g, double h, long i,
                                double j, long k, double l, double m, long n, double o, double p, double q, long r) {
  return a == 1 && b == 2.5 && std::strcmp(c, "three") == 0 && d == 4.5 && e == 5 && f == 6.5F && g == 7 && h == 8.5 &&
                 i == 9 && j == 10.5 && k == 11 && l == 12.5 && m == 13.5 && n == 14 && o == 15.5 && p == 16.5 &&
                 q == 17.5 && r == -18
             ? 4242
             : -1;
}

// Takes whole vectors and gives its result in memory, whose address aarch64 passes in a register of its own.
EXPORT Wide cuProfilerStop(Vector a, Vector b, Vector c, Vector d, Vector e, Vector f, Vector g, Vector h) {
  return {{a, b, c, d, e, f, g, h}};
}

// Exported by drivers, declared in no header.
EXPORT int cuMemGetAttribute() {
  return 1234;
}

// A table that only this driver can have made.
static const void* const private_table[] = {nullptr, private_table};
EXPORT int cuGetExportTable(const void** table, const void*) {
  *table = private_table;
  return 0;
}
EXPORT int cuProfilerStart() {
  return 0;
}

// A function newer than any list of rota's.
static int function_of_the_future() {
  return 77;
}

#if !defined(TEST_DRIVER_OLD)
EXPORT int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags);
EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags, int* status);

static int find(const char* name, void** function) {
  if (std::strcmp(name, "cuFromTheFuture") == 0) {
    *function = reinterpret_cast<void*>(&function_of_the_future);
    return 0;
  }
  // Not by dlsym: a dlopen of this file would lead to the shim.
  struct Entry {
    const char* name;
    void* function;
  };
  const Entry entries[] = {
      {"cuInit", reinterpret_cast<void*>(&cuInit)},
      {"cuDriverGetVersion", reinterpret_cast<void*>(&cuDriverGetVersion)},
      {"cuDeviceGetCount", reinterpret_cast<void*>(&cuDeviceGetCount)},
      {"cuProfilerStart", reinterpret_cast<void*>(&cuProfilerStart)},
#if defined(TEST_DRIVER_11)
      {"cuGetProcAddress", reinterpret_cast<void*>(&cuGetProcAddress)},
#else
      {"cuGetProcAddress", reinterpret_cast<void*>(&cuGetProcAddress_v2)},
#endif
  };
  for (const Entry& entry : entries) {
    if (std::strcmp(name, entry.name) == 0) {
      *function = entry.function;
      return 0;
    }
  }
  *function = nullptr;
  return kNotFound;
}

EXPORT int cuGetProcAddress(const char* name, void** function, int version, unsigned long long) {
  return version > kVersion ? kInvalidValue : find(name, function);
}
#if !defined(TEST_DRIVER_11)
// What it was asked for, for the test that everything passes through unread.
EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags, int* status) {
  if (std::strcmp(name, "cuEcho") == 0) return static_cast<int>(version * 10 + static_cast<int>(flags));
  if (function == nullptr) return 0;
  const int result = version > kVersion ? kInvalidValue : find(name, function);
  if (result == kNotFound) *function = nullptr;
  if (status != nullptr && result != kInvalidValue) *status = result == kNotFound ? 1 : 0;
  return result == kNotFound ? 0 : result;
}
#endif
#endif
