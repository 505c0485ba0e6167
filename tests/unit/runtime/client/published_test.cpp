// What rotad publishes about each GPU, as the program's threads read it.
#include "runtime/client/published.h"

#include <catch2/catch.hpp>
#include <memory>

#include "scheduler/rules/context_cost.h"

using namespace rota;
using namespace rota::client;
using namespace rota::turn;
using namespace std::chrono_literals;

TEST_CASE(
    "without a rotad, and of a GPU that it does not serve, nothing is known but what contexts are assumed to take") {
  Published published;
  published.set_total(0, std::uint64_t{80} << 30);
  CHECK_FALSE(published.limited());
  CHECK_FALSE(published.gpu(0));
  CHECK(published.context_bytes(0) == protocol::assumed_context(std::uint64_t{80} << 30));
  CHECK(published.context_bytes(-1) == 0);
  CHECK_FALSE(published.others_can_leave(0));
  const auto page = std::make_unique<protocol::LeasePage>();
  page->limit_bytes = protocol::kUnlimited;
  published.follow(page.get());
  CHECK_FALSE(published.gpu(0));
  published.set_index(0, 3);
  REQUIRE(published.gpu(0));
  CHECK(published.gpu(0)->index == 3);
  CHECK_FALSE(published.limited());
  page->limit_bytes = 1;
  CHECK(published.limited());
  published.forget();
  CHECK_FALSE(published.gpu(0));
  published.follow(page.get());
  CHECK_FALSE(published.gpu(0));  // that rotad's indices ended with it
}

TEST_CASE("a turn is about to end a quarter of a second before rotad takes the lease back") {
  const auto page = std::make_unique<protocol::LeasePage>();
  Published published;
  published.follow(page.get());
  published.set_index(0, 0);
  CHECK_FALSE(published.turn_ends(0, 100s));  // no time is set
  page->gpus[0].give_back_by_ns = static_cast<std::uint64_t>(Time(100s).count());
  CHECK_FALSE(published.turn_ends(0, 99s));
  CHECK(published.turn_ends(0, 100s - 250ms));
}

TEST_CASE("a GPU counts as overcommitted for ten seconds after programs had more than fits") {
  const auto page = std::make_unique<protocol::LeasePage>();
  Published published;
  published.follow(page.get());
  published.set_index(0, 0);
  CHECK_FALSE(published.crowded(0, 1s));
  page->gpus[0].too_much_bytes = 1;
  CHECK(published.crowded(0, 2s));
  page->gpus[0].too_much_bytes = 0;
  CHECK(published.crowded(0, 11s));
  CHECK_FALSE(published.crowded(0, 12s));
}
