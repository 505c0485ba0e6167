#include <catch2/catch_session.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>

#include "catch2_cases.h"
#include "tools/rota_test/rota_test.h"

TEST_CASE("skips") {
  SKIP("not here");
}

ROTA_TEST_CATCH2_LISTENER

int main(int count, char** words) {
  return Catch::Session().run(count, words);
}
