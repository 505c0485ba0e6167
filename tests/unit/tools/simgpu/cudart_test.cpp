// The stand-in for libcudart.so.13 by itself, without a driver.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <initializer_list>
#include <string>
#include <utility>

namespace {

void* runtime() {
  static void* library = dlopen(SIMGPU_CUDART, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  return library;
}
template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(dlsym(runtime(), name));
}

}  // namespace

TEST_CASE("the runtime stand-in exports what libcudart.so.13 exports, in its version node") {
#define ROTA_CUDART_SYMBOL(major, node, name) {#node, #name},
  for (const auto& [node, name] : std::initializer_list<std::pair<std::string, const char*>>{
#include "generated/runtime_symbols.inc"
       }) {
#undef ROTA_CUDART_SYMBOL
    if (node != "libcudart.so.13") continue;
    INFO(name);
    CHECK(dlvsym(runtime(), name, "libcudart.so.13") != nullptr);
  }
}

TEST_CASE("what the runtime stand-in has not says that it is not supported, to the error state too") {
  auto* last_error = find<int()>("cudaGetLastError");
  last_error();
  CHECK(find<int(unsigned long long)>("cudaDestroyTextureObject")(0) == 801);
  CHECK(find<int()>("cudaPeekAtLastError")() == 801);
  CHECK(last_error() == 801);
  CHECK(last_error() == 0);
}

TEST_CASE("the runtime stand-in names errors as the runtime does") {
  auto* name = find<const char*(int)>("cudaGetErrorName");
  auto* text = find<const char*(int)>("cudaGetErrorString");
  CHECK(std::string(name(0)) == "cudaSuccess");
  CHECK(std::string(name(400)) == "cudaErrorInvalidResourceHandle");
  CHECK(std::string(name(12)) == "cudaErrorInvalidPitchValue");
  CHECK(std::string(text(12)) == "invalid pitch value");
  CHECK(std::string(text(2)) == "out of memory");
  CHECK(std::string(name(-7)) == "unrecognized error code");
  CHECK(std::string(text(-7)) == "unrecognized error code");
}
