// Whether the tests of this folder cover every override: each of their tables names the overrides that its rows call
// and check, so a new one in runtime/overrides.inc has no row until somebody says what its success means.
#include <catch2/catch.hpp>

#include "tests/unit/runtime/hooks/program.h"

using namespace rota;

TEST_CASE("every override of the list has a row in the tests of what it does") {
#define ROTA_OVERRIDE(name)                                      \
  CHECKED_ELSE(test::covered().count(Symbol::k_##name) == 1) {   \
    FAIL_CHECK(#name " has no row in tests/unit/runtime/hooks"); \
  }
#include "runtime/overrides.inc"
#undef ROTA_OVERRIDE
  for (const Symbol symbol : test::covered()) {
    INFO(test::name_of(symbol));
    CHECK(overrides::find(symbol) != nullptr);
  }
}
