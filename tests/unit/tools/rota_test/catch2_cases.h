// The tests in the programs of both versions.
#pragma once

#include <signal.h>

#include <stdexcept>

#include "gpu.h"

TEST_CASE("nothing") {}
TEST_CASE("some") {
  gpu::allocate(30);
  gpu::release(20);
  SECTION("first") {
    gpu::launch(2000000000, 500000000);
  }
  SECTION("second") {
    gpu::launch(0, 0);
  }
}
TEST_CASE("fails: \"one\"") {
  CHECK(1 == 2);
  CHECK(3 == 4);
}
TEST_CASE("throws") {
  throw std::runtime_error("five");
}
TEST_CASE("fails, as known", "[!shouldfail]") {
  CHECK(1 == 2);
}
TEST_CASE("killed", "[.]") {
  raise(SIGKILL);
}
