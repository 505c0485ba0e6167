#include "tools/rota/try/native.h"

#include <catch2/catch.hpp>

namespace rota::attempt {
namespace {

TEST_CASE("rota's libraries leave a list of preloads, and nobody else's do") {
  CHECK(without_rota("").empty());
  CHECK(without_rota("/usr/lib/rota/librota.so").empty());
  CHECK(without_rota("/cache/1a/librota.so:/x/librota-nvml.so:/x/librota-cudart.so").empty());
  CHECK(without_rota("libasan.so.8:/x/librota.so /lib/libjemalloc.so.2") == "libasan.so.8:/lib/libjemalloc.so.2");
  CHECK(without_rota("/lib/mylibrota.so::/x/librota.so.old") == "/lib/mylibrota.so:/x/librota.so.old");
}

}  // namespace
}  // namespace rota::attempt
