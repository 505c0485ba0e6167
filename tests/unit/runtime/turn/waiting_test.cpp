// When a program that waits at the gate says so.
#include "runtime/turn/waiting.h"

#include <catch2/catch.hpp>

using namespace std::chrono_literals;
using rota::turn::Waiting;

TEST_CASE("who waits speaks after 1, 10 and 60 s, and then no more, whatever wait that is") {
  int asked = 0;
  Waiting waiting([&] {
    ++asked;
    return std::string("GPU 0, held by pid 7 (other, alice)");
  });
  // Many short waits: no message.
  for (int i = 0; i < 100; ++i) {
    CHECK(waiting.stands(0s) == 1s);
    CHECK(waiting.stands(999ms) == 1s);
  }
  CHECK(asked == 0);
  CHECK(waiting.stands(1s) == 10s);
  CHECK(asked == 1);
  // The next wait of a second is not reported again.
  CHECK(waiting.stands(0s) == 10s);
  CHECK(waiting.stands(2s) == 10s);
  CHECK(asked == 1);
  CHECK(waiting.stands(10s) == 60s);
  CHECK(waiting.stands(60s) == std::nullopt);
  CHECK(asked == 3);
  CHECK(waiting.stands(1000s) == std::nullopt);
  CHECK(asked == 3);
}
