// The target of the weak stubs (stubs.S): the error is recorded like any other, and ROTA_SIM_LOG names the function
// once.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "tools/simgpu/cudart/runtime.h"

using namespace rota::sim::cudart;  // NOLINT

extern "C" __attribute__((visibility("hidden"))) int rota_cudart_not_supported(const char* name) {
  const char* log = std::getenv("ROTA_SIM_LOG");  // NOLINT(concurrency-mt-unsafe): read only
  if (log != nullptr && *log != '\0') {
    static auto* mutex = new std::mutex;
    static auto* named = new std::set<const char*>;
    std::lock_guard lock(*mutex);
    if (named->insert(name).second) {
      std::FILE* file = std::strcmp(log, "-") == 0 ? nullptr : std::fopen(log, "a");
      std::fprintf(file != nullptr ? file : stderr, "simgpu: not simulated: %s\n", name);
      if (file != nullptr) std::fclose(file);
    }
  }
  return done(kNotSupported);
}
