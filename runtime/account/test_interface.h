/* How a test framework's plugin tells rota which test runs in this process: it calls `rota_core_test`, a function of
   librota-core.so. Under rota, the process's first CUDA call loads that library; the plugin finds it with
   dlopen("librota-core.so", RTLD_NOLOAD). Plain C. The header tools/rota_test/rota_test.h and the pytest plugin call
   this function. */
#ifndef ROTA_ACCOUNT_TEST_INTERFACE_H
#define ROTA_ACCOUNT_TEST_INTERFACE_H

#include <stdint.h>

enum { kRotaTestVersion = 1 };
enum RotaTestWhat { kRotaTestBegins = 0, kRotaTestEnds = 1 };

/* Figures of the whole process at the time of the call: all threads, all GPUs. Counts and times are totals since the
   process began. */
struct RotaTestAccount {
  uint64_t used_bytes;  /* allocated and not freed; memory freed in stream order counts as free once the call to free
                           it has been made */
  uint64_t peak_bytes;  /* the sum of each GPU's peak since the last kRotaTestBegins, or since the process began; the
                           peaks of two GPUs may be at different times */
  uint64_t allocations; /* number */
  uint64_t live;        /* number of allocations that have not been freed */
  uint64_t launches, copies, copied_bytes, synchronizations, calls, errors, waited_ns, busy_ns;
};

/* Returns 0 with `account` filled; 1 if this process has no account; 2 if the version or `what` is unknown or a pointer
   is null. `name` is cut off at 1023 bytes. */
typedef int RotaCoreTest(uint32_t version, uint32_t what, const char* name, struct RotaTestAccount* account);
#define ROTA_CORE_TEST_NAME "rota_core_test"

#endif
