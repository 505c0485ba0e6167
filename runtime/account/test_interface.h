/* How a test framework's plugin tells rota which test runs in this process: `rota_core_test`, exported by
   librota-core.so (found by dlopen("librota-core.so", RTLD_NOLOAD), once the process has called CUDA under
   `rota run --report` or `rota ci`). Plain C; include/rota/rota_test.h and the pytest plugin are its users. */
#ifndef ROTA_ACCOUNT_TEST_INTERFACE_H
#define ROTA_ACCOUNT_TEST_INTERFACE_H

#include <stdint.h>

enum { kRotaTestVersion = 1 };
enum RotaTestWhat { kRotaTestBegins = 0, kRotaTestEnds = 1 };

/* Of the whole process, all threads: at the moment of the call, except for `peak_bytes`. */
struct RotaTestAccount {
  uint64_t used_bytes;  /* what the program has not freed, on all GPUs together (memory that is freed in stream order
                           counts as free from the call on) */
  uint64_t peak_bytes;  /* the most since the last kRotaTestBegins, or since the process began */
  uint64_t allocations; /* so far */
  uint64_t live;        /* of them not freed */
  uint64_t launches, copies, copied_bytes, synchronizations, calls, errors, waited_ns, busy_ns;
};

/* 0, with `account` filled; 1: this process has no account; 2: unknown version. `name` is cut off at 1023 bytes. */
typedef int RotaCoreTest(uint32_t version, uint32_t what, const char* name, struct RotaTestAccount* account);
#define ROTA_CORE_TEST_NAME "rota_core_test"

#endif
