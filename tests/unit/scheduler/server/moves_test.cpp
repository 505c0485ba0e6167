// What follows from the sums that a client reports about its moves, reading by reading.
#include <catch2/catch.hpp>

#include "scheduler/server/moves.h"

namespace rota::server {
namespace {

using namespace std::chrono_literals;

protocol::Moves sums(std::uint64_t out, std::uint64_t in) {
  return {.out_bytes = out, .out_ns = out / 50, .in_bytes = in, .in_ns = in / 40, .spared_bytes = out / 2};
}

}  // namespace

TEST_CASE("moves are told of once they have ended, all of a switch together, each once") {
  Burst burst;
  CHECK_FALSE(burst.read({}, 1s));
  CHECK_FALSE(burst.read(sums(1000, 0), 1s + 200ms));
  CHECK_FALSE(burst.read(sums(4000, 400), 1s + 400ms));
  const auto first = burst.read(sums(4000, 400), 1s + 600ms);
  REQUIRE(first);
  CHECK(text_of(*first) == "out 4000 bytes at 50.0 GB/s, 2000 without a copy; back 400 bytes at 40.0 GB/s");
  CHECK_FALSE(burst.read(sums(4000, 400), 1s + 800ms));
  CHECK_FALSE(burst.read(sums(4000, 800), 2s));
  const auto second = burst.read(sums(4000, 800), 2s + 200ms);
  REQUIRE(second);
  CHECK(text_of(*second) == "out 0 bytes, 0 without a copy; back 400 bytes at 40.0 GB/s");
}

TEST_CASE("moves that do not end are told of once a second") {
  Burst burst;
  std::uint64_t told = 0;
  std::uint64_t bytes = 0;
  for (scheduler::Time now = 1s; now < 4s + 100ms; now += 200ms) {
    bytes += 1000;
    if (const auto moved = burst.read(sums(bytes, 0), now)) told += moved->out_bytes;
  }
  CHECK(told != 0);
  CHECK(told + 5000 >= bytes);
}

TEST_CASE("sums that fall, which no program's do, are no moves") {
  Burst burst;
  burst.read(sums(5000, 5000), 1s);
  CHECK(burst.read(sums(5000, 5000), 2s));
  CHECK_FALSE(burst.read(sums(1000, 1000), 3s));
  const auto moved = burst.read(sums(1000, 1000), 4s);
  REQUIRE(moved);
  CHECK(text_of(*moved) == "out 0 bytes, 0 without a copy; back 0 bytes");
}

}  // namespace rota::server
