// A library that calls CUDA while it is being loaded, that is, under the loader's lock.
#include <dlfcn.h>

extern "C" {
__attribute__((visibility("default"))) int constructor_result = -2;
}

__attribute__((constructor)) static void call_cuda() {
  if (void* library = dlopen("libcuda.so.1", RTLD_NOW)) {
    constructor_result = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"))(0);
  }
}
