// What the members of a gang on one GPU are told about its memory, while the others' memory there changes.
#include <catch2/catch.hpp>

#include "tests/unit/scheduler/server/rank.h"

namespace rota::test {
namespace {

using protocol::GpuLease;

TEST_CASE("what a member is promised, and whether others can evict for it, follows what the others have") {
  Daemon daemon({"--mode", "exclusive"});
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 0);
  for (Rank* rank : {&one, &two}) {
    rank->use(0, kGpuBytes / 8);
    rank->join("job");
  }
  REQUIRE(two.is_member());
  for (Rank* rank : {&one, &two}) rank->say(0, 0);
  two.catch_up();
  one.want_mine();
  REQUIRE(one.is_granted());
  REQUIRE(two.is_granted());
  CHECK(one.page().movable == 0);
  one.ask(0, kGpuBytes / 4);
  CHECK(one.shows([](const GpuLease& page) { return page.promised_bytes >= kGpuBytes / 4; }));
  two.catch_up();  // one page is written after the other
  CHECK(two.page().promised_bytes >= kGpuBytes / 8);
  CHECK(two.page().promised_bytes <= kGpuBytes / 8 + kGpuBytes / 32);
  two.ask(0, kGpuBytes / 2);
  CHECK(two.shows([](const GpuLease& page) { return page.promised_bytes >= kGpuBytes / 2; }));
  one.catch_up();
  CHECK(one.page().promised_bytes >= kGpuBytes / 4);
  CHECK(one.page().promised_bytes <= kGpuBytes / 4 + kGpuBytes / 32);
  // The other one swaps from now on.
  two.usage->gpus[0].resident_bytes = kGpuBytes / 8;
  two.say(0, 0);
  two.catch_up();
  one.ask(0, kGpuBytes / 4 + kGpuBytes / 16);
  CHECK(one.shows([](const GpuLease& page) { return page.movable == 1; }));
  two.catch_up();
  CHECK(two.page().movable == 0);
  // Until that can no longer be evicted.
  two.usage->gpus[0].fixed_bytes = kGpuBytes / 8;
  two.say(0, 0);
  two.catch_up();
  one.ask(0, kGpuBytes / 4 + kGpuBytes / 8);
  CHECK(one.shows([](const GpuLease& page) { return page.movable == 0; }));
}

}  // namespace
}  // namespace rota::test
