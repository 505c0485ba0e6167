// The small machines that the monitor asks: whether memory is lost, how long it stays for a library, and what is due.
#include <catch2/catch.hpp>

#include "runtime/turn/chores.h"
#include "runtime/turn/loads.h"
#include "runtime/turn/restores.h"

using namespace rota::turn;
using namespace std::chrono_literals;

TEST_CASE("memory is lost after five refusals in three seconds, and not after as many in less") {
  Restores restores;
  for (int i = 0; i < 100; ++i) CHECK_FALSE(restores.refused(1s + i * 1ms));
  CHECK(restores.refused(4s));
  CHECK(restores.lost());
  Restores few;
  for (int i = 0; i < 4; ++i) CHECK_FALSE(few.refused(i * 1h));
  CHECK(few.refused(4h));
}

TEST_CASE("refusals count since all memory was last there") {
  Restores restores;
  for (int i = 0; i < 10; ++i) {
    for (int j = 0; j < 4; ++j) CHECK_FALSE(restores.refused(1h * (i * 10 + j)));
    restores.succeeded();
  }
  CHECK_FALSE(restores.lost());
}

TEST_CASE("memory is lost once the driver has lacked some for five minutes although it had enough free each time") {
  Restores restores;
  for (Time now = 1s; now < 301s; now += 100ms) CHECK_FALSE(restores.denied(now));
  restores.lacks();
  for (Time now = 301s; now < 601s; now += 100ms) CHECK_FALSE(restores.denied(now));
  restores.succeeded();
  for (Time now = 601s; now < 901s; now += 100ms) CHECK_FALSE(restores.denied(now));
  CHECK_FALSE(restores.refused(901s));  // which is another row
  CHECK(restores.denied(901s));
  CHECK(restores.lost());
}

TEST_CASE("memory stays in place as long as a library takes to load, and shorter for one that was loaded lately") {
  Loads loads;
  CHECK(loads.stays("a", 1s) == Loads::kStays);
  loads.loads("a", 1s);
  CHECK(loads.stays("a", 2s) == Loads::kStaysAgain);
  CHECK(loads.stays("b", 2s) == Loads::kStays);
  CHECK(loads.stays("a", 61s) == Loads::kStays);
  for (std::size_t i = 0; i < Loads::kMost; ++i) loads.loads("c" + std::to_string(i), 61s);
  CHECK(loads.stays("a", 61s) == Loads::kStays);
}

TEST_CASE("what is done now and then is due once in each span, or at once if that is asked for") {
  Every every(250ms);
  CHECK(every.due(1s));
  CHECK_FALSE(every.due(1s + 249ms));
  CHECK(every.due(1s + 250ms, 10ms));
  CHECK(every.due(1s + 260ms));
  every.at_once();
  CHECK(every.due(1s + 261ms));
}
