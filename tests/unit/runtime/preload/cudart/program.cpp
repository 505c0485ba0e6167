// Loads plugins one after the other, each of which brings its libcudart with it, and says whether every answer was
// right.
#include <dlfcn.h>

#include <cstdio>

int main(int count, char** arguments) {
  int result = 0;
  for (int i = 1; i < count; ++i) {
    void* const plugin = dlopen(arguments[i], RTLD_NOW | RTLD_LOCAL);
    if (plugin == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      return 2;
    }
    result |= reinterpret_cast<int (*)()>(dlsym(plugin, "work"))();
  }
  std::puts(result == 0 ? "right" : "wrong");
  return result;
}
