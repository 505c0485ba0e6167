// Loads the plugin, which brings libcudart with it, and says whether every answer was right.
#include <dlfcn.h>

#include <cstdio>

int main(int count, char** arguments) {
  void* const plugin = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (plugin == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  auto* const work = reinterpret_cast<int (*)()>(dlsym(plugin, "work"));
  const int result = work();
  std::puts(result == 0 ? "right" : "wrong");
  return result;
}
