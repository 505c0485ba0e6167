// A library whose constructor loads another one, which the variable ROTA_TEST_LOADS names: with the loader's lock held.
#include <dlfcn.h>

#include <cstdlib>

namespace {

[[gnu::constructor]] void load() {
  if (const char* library = std::getenv("ROTA_TEST_LOADS"); library != nullptr) dlopen(library, RTLD_NOW);
}

}  // namespace
