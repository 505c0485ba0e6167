// A libcuda.so.1 that misbehaves as ODD_DRIVER says, for tests of the consequences:
//   hang      cuInit never returns (its process's id goes to the file ODD_DRIVER_PID)
//   abort     cuInit ends the process by a signal
//   exit      cuInit ends the process with code 3
//   load      the process dies while the library is loaded
//   a number  what cuInit returns
// ODD_DRIVER_VERSION is what it calls itself (13000), ODD_DRIVER_COMPUTE_MODE the compute mode of its one GPU. It
// prints on both streams, as no driver should.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "generated/driver_types.h"

#define ODD_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text != nullptr ? atoi(text) : otherwise;
}

bool wants(const char* what) {
  const char* text = getenv("ODD_DRIVER");
  return text != nullptr && strcmp(text, what) == 0;
}

__attribute__((constructor)) void loaded() {
  if (wants("load")) abort();
}

}  // namespace

ODD_EXPORT int cuInit(unsigned) {
  puts("{\"init\": 5}");
  fflush(stdout);
  fputs("odd driver: hello\n", stderr);
  if (wants("hang")) {
    if (const char* path = getenv("ODD_DRIVER_PID")) {
      if (FILE* file = fopen(path, "w")) {
        fprintf(file, "%d", static_cast<int>(getpid()));
        fclose(file);
      }
    }
    for (;;) pause();
  }
  if (wants("abort")) abort();
  if (wants("exit")) _exit(3);
  return number("ODD_DRIVER", 0);
}

ODD_EXPORT int cuDriverGetVersion(int* version) {
  *version = number("ODD_DRIVER_VERSION", 13000);
  return 0;
}

ODD_EXPORT int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}

ODD_EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

ODD_EXPORT int cuDeviceGetName(char* name, int length, int) {
  snprintf(name, static_cast<size_t>(length), "odd \xff GPU");
  return 0;
}

ODD_EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{64} << 20;
  return 0;
}

ODD_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == rota::api::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE ? number("ODD_DRIVER_COMPUTE_MODE", 0) : 1;
  return 0;
}

ODD_EXPORT int cuNobodyKnowsThis() {
  return 0;
}
ODD_EXPORT int cudbgNotCounted() {
  return 0;
}
