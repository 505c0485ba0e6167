// Memory that a thread holds in place without being inside a call.
#include <catch2/catch.hpp>
#include <chrono>

#include "runtime/gate/gate.h"

using namespace rota;
using namespace std::chrono_literals;

TEST_CASE("memory that is held in place stays there, and a call within that reads addresses waits for nothing") {
  gate::Gate gate;
  gate.close();
  const auto empty_within = [&](std::chrono::nanoseconds patience) {
    return gate.wait_until_empty(std::chrono::steady_clock::now() + patience);
  };
  {
    const gate::HeldInPlace held;
    REQUIRE_FALSE(empty_within(5ms));
    gate::out_of_place.store(true);
    const gate::MappingScope within;
    CHECK_FALSE(within.refused());
    CHECK(gate.standing() == 0);
    gate::out_of_place.store(false);
  }
  CHECK(empty_within(20s));
}
