// What the programs' tests do with the GPU, through a stand-in for rota's core that is loaded at first use as the real
// one is.
#pragma once

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

namespace gpu {

template <typename Function>
Function* function(const char* name) {
  static void* const core = dlopen(ROTA_TEST_CORE, RTLD_NOW);
  if (core == nullptr) abort();
  return reinterpret_cast<Function*>(dlsym(core, name));
}

inline void allocate(uint64_t megabytes) {
  function<void(uint64_t)>("stand_in_allocate")(megabytes << 20);
}
inline void release(uint64_t megabytes) {
  function<void(uint64_t)>("stand_in_free")(megabytes << 20);
}
inline void launch(uint64_t busy_ns, uint64_t waited_ns) {
  function<void(uint64_t, uint64_t)>("stand_in_launch")(busy_ns, waited_ns);
}
inline void answer(uint32_t code) {
  function<void(uint32_t)>("stand_in_answer")(code);
}

}  // namespace gpu
