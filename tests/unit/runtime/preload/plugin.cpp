// A plug-in that is found only through the RUNPATH of the program ($ORIGIN/plugins), and which finds another library
// only through its own ($ORIGIN/inner): both break if dlopen sees another caller than the true one.
#include <dlfcn.h>

extern "C" __attribute__((visibility("default"))) int open_beside_me(const char* name) {
  // No tail call here, or the loader would see our caller.
  void* volatile library = dlopen(name, RTLD_NOW);
  return library != nullptr ? 1 : 0;
}
