#include <catch2/catch.hpp>

#include "tools/rota/ci/admissions.h"

namespace {

using namespace rota::ci;
using namespace std::chrono_literals;
using Ids = std::vector<int>;
using Gpus = std::vector<std::string>;

// On the only GPU.
Load on(std::uint64_t bytes) {
  return {{"gpu", bytes}};
}

const Load kRoom = {{"A", 1000}, {"B", 1000}};

}  // namespace

TEST_CASE("tests begin in order as long as what they need fits together, and smaller ones fill what is left") {
  Admissions admissions;
  admissions.ask(1, "a", on(600), 0s);
  admissions.ask(2, "b", on(600), 0s);
  admissions.ask(3, "c", on(300), 0s);
  CHECK(admissions.step(on(1000), 0s) == Ids{1, 3});
  CHECK(admissions.waiting() == 1);
  CHECK(admissions.step(on(1000), 1s).empty());
  admissions.ended(1);
  CHECK(admissions.step(on(1000), 2s) == Ids{2});
  CHECK(admissions.waited().at("b").time == 2s);
  CHECK_FALSE(admissions.waited().at("b").gave_up);
}

TEST_CASE("the memory that a test has counts if it is more than what was reserved for it") {
  Admissions admissions;
  admissions.ask(1, "a", on(300), 0s);
  CHECK(admissions.step(on(1000), 0s) == Ids{1});
  admissions.uses("a", on(800));
  admissions.ask(2, "b", on(300), 0s);
  CHECK(admissions.step(on(1000), 0s).empty());
  admissions.uses("a", on(200));  // it may come back to what it needs
  CHECK(admissions.step(on(1000), 0s) == Ids{2});
}

TEST_CASE("a test whose needs are not known begins at once, and counts with what it has") {
  Admissions admissions;
  admissions.ask(1, "a", std::nullopt, 0s);
  CHECK(admissions.step(on(1000), 0s) == Ids{1});
  admissions.uses("a", on(900));
  admissions.ask(2, "b", on(200), 0s);
  CHECK(admissions.step(on(1000), 0s).empty());
}

TEST_CASE("no test waits longer than a minute, for more than the GPU has, or for a GPU of which nothing is known") {
  Admissions admissions;
  admissions.ask(1, "a", on(900), 0s);
  admissions.ask(2, "b", on(900), 10s);
  CHECK(admissions.step(on(1000), 10s) == Ids{1});
  CHECK(admissions.step(on(1000), 69s).empty());
  CHECK(admissions.step(on(1000), 70s) == Ids{2});
  CHECK(admissions.waited().at("b").gave_up);
  admissions.ask(3, "c", on(5000), 70s);
  admissions.ask(4, "d", on(900), 70s);
  CHECK(admissions.step(on(1000), 70s) == Ids{3});
  CHECK(admissions.step({}, 70s) == Ids{4});
}

TEST_CASE("further processes of a test that has begun never wait") {
  Admissions admissions;
  admissions.ask(1, "a", on(600), 0s);
  admissions.ask(2, "b", on(400), 0s);
  CHECK(admissions.step(on(1000), 0s) == Ids{1, 2});
  admissions.ask(3, "a", on(600), 1s);
  CHECK(admissions.step(on(1000), 1s) == Ids{3});
  // The memory stays reserved while any of them is there.
  admissions.ended(1);
  admissions.ask(4, "c", on(400), 2s);
  CHECK(admissions.step(on(1000), 2s).empty());
  admissions.ended(3);
  CHECK(admissions.step(on(1000), 2s) == Ids{4});
}

TEST_CASE("of tests that follow each other in one process only the one that runs counts") {
  Admissions admissions;
  admissions.ask(1, "worker", on(600), 0s);
  admissions.ask(2, "other", on(300), 0s);
  CHECK(admissions.step(on(1000), 0s) == Ids{1, 2});
  admissions.uses("worker", on(100));
  admissions.ask(1, "worker", on(200), 1s);  // the next test is smaller: at once
  CHECK(admissions.step(on(1000), 1s) == Ids{1});
  admissions.ask(3, "third", on(500), 1s);
  CHECK(admissions.step(on(1000), 1s) == Ids{3});
  admissions.ask(1, "worker", on(700), 2s);  // larger: waits, and keeps what it has meanwhile
  CHECK(admissions.step(on(1000), 2s).empty());
  admissions.ended(3);
  CHECK(admissions.step(on(1000), 3s) == Ids{1});
}

TEST_CASE("a test that ends while it waits is forgotten") {
  Admissions admissions;
  admissions.ask(1, "a", on(900), 0s);
  CHECK(admissions.step(on(1000), 0s) == Ids{1});
  admissions.ask(2, "b", on(900), 0s);
  admissions.ended(2);
  admissions.ended(1);
  CHECK(admissions.step(on(1000), 0s).empty());
  CHECK(admissions.waiting() == 0);
}

TEST_CASE("a worker between two tests counts only with the memory that it has") {
  Admissions admissions;
  admissions.ask(1, "worker", on(700), 0s);
  CHECK(admissions.step(on(1000), 0s) == Ids{1});
  admissions.ask(2, "other", on(700), 0s);
  CHECK(admissions.step(on(1000), 0s).empty());
  admissions.done(1);
  CHECK(admissions.step(on(1000), 1s) == Ids{2});
  admissions.ask(1, "worker", on(200), 1s);
  CHECK(admissions.step(on(1000), 1s) == Ids{1});
}

TEST_CASE(
    "cached memory of a worker that can be evicted does not count between its tests, and its next test adds to the "
    "rest") {
  Admissions admissions;
  admissions.ask(1, "a", on(600), 0s, true);
  admissions.ask(2, "b", on(300), 0s, true);
  CHECK(admissions.step(on(1000), 0s) == Ids{1, 2});
  admissions.uses("a", on(700), on(100));
  admissions.uses("b", on(400), on(100));
  admissions.ask(3, "c", on(300), 1s, true);
  CHECK(admissions.step(on(1000), 1s).empty());  // 600 and 300, and two contexts
  admissions.done(1);
  CHECK(admissions.step(on(1000), 1s) == Ids{3});
  admissions.ask(1, "a", on(0), 2s, true);  // adds nothing to what it has
  CHECK(admissions.step(on(1000), 2s) == Ids{1});
  admissions.ask(1, "a", on(250), 3s, true);  // 100 that cannot be evicted and 250 do not fit next to 400 and 300
  CHECK(admissions.step(on(1000), 3s).empty());
  admissions.done(2);
  CHECK(admissions.step(on(1000), 4s) == Ids{1});
}

TEST_CASE("workers that wait for what other waiting workers have cached do not wait for a minute") {
  Admissions admissions;
  admissions.ask(1, "a", on(400), 0s);
  admissions.ask(2, "b", on(350), 0s);
  CHECK(admissions.step(on(1000), 0s) == Ids{1, 2});
  admissions.uses("a", on(400));
  admissions.uses("b", on(350));
  admissions.done(1);
  admissions.ask(1, "a", on(800), 5s);
  CHECK(admissions.step(on(1000), 5s).empty());  // b runs, and may free what it has
  admissions.done(2);
  admissions.ask(2, "b", on(800), 6s);
  CHECK(admissions.step(on(1000), 6s) == Ids{1});
  CHECK(admissions.waited().at("a").gave_up);
  CHECK(admissions.step(on(1000), 7s).empty());  // now one runs, and may end
}

TEST_CASE("a test waits for the GPU that it needs, not for others") {
  Admissions admissions;
  admissions.ask(1, "a", Load{{"A", 600}}, 0s);
  admissions.ask(2, "b", Load{{"A", 600}}, 0s);
  admissions.ask(3, "c", Load{{"B", 600}}, 0s);
  CHECK(admissions.step(kRoom, 0s) == Ids{1, 3});
  admissions.ended(3);
  CHECK(admissions.step(kRoom, 1s).empty());
  admissions.ended(1);
  CHECK(admissions.step(kRoom, 2s) == Ids{2});
}

TEST_CASE("a test of several GPUs begins when it fits on each of them") {
  Admissions admissions;
  admissions.ask(1, "a", Load{{"B", 600}}, 0s);
  admissions.ask(2, "b", Load{{"A", 600}, {"B", 600}}, 0s);
  CHECK(admissions.step(kRoom, 0s) == Ids{1});
  admissions.ask(3, "c", Load{{"A", 600}}, 1s);  // nothing is reserved for a test that waits
  CHECK(admissions.step(kRoom, 1s) == Ids{3});
  admissions.ended(1);
  CHECK(admissions.step(kRoom, 2s).empty());
  admissions.ended(3);
  CHECK(admissions.step(kRoom, 3s) == Ids{2});
}

TEST_CASE("a test does not wait a minute for memory of idle workers on its GPU while tests run on another one") {
  Admissions admissions;
  admissions.ask(1, "idle", Load{{"A", 700}}, 0s);
  admissions.ask(2, "busy", Load{{"B", 700}}, 0s);
  CHECK(admissions.step(kRoom, 0s) == Ids{1, 2});
  admissions.uses("idle", {{"A", 700}});
  admissions.done(1);
  admissions.ask(3, "next", Load{{"A", 600}}, 1s);
  CHECK(admissions.step(kRoom, 1s) == Ids{3});
  CHECK(admissions.waited().at("next").gave_up);
}

TEST_CASE("needs are on the GPUs that a process sees, in its order") {
  const Gpus gpus = {"A", "B"};
  CHECK(on_gpus({500}, gpus, 1) == Load{{"B", 500}});
  CHECK(on_gpus({500, 300}, gpus, 0) == Load{{"A", 500}, {"B", 300}});
  CHECK(on_gpus({500, 300}, {"A"}, 0) == Load{{"A", 800}});
  CHECK(on_gpus({0, 300}, gpus, 0) == Load{{"B", 300}});
  CHECK(on_gpus({}, gpus, 0).empty());
}

TEST_CASE("tests of which nothing is known are spread evenly, and the same test has the same GPU") {
  Admissions admissions;
  admissions.spread({"A", "B", "C"}, 1);
  const Load room = {{"A", 1000}, {"B", 1000}, {"C", 1000}};
  std::map<std::string, int> tests;
  for (int who = 1; who <= 9; ++who) {
    const Gpus given = admissions.give(who, "t" + std::to_string(who), {}, room);
    REQUIRE(given.size() == 1);
    ++tests[given[0]];
  }
  CHECK(tests == std::map<std::string, int>{{"A", 3}, {"B", 3}, {"C", 3}});
  CHECK(admissions.give(10, "t2", {}, room) == Gpus{"B"});
  admissions.ended(2);
  admissions.ended(10);
  CHECK(admissions.give(11, "new", {}, room) == Gpus{"B"});  // B has two tests, A and C have three
  // A test keeps its GPU after its processes have ended, whatever the others do meanwhile.
  admissions.ended(3);
  CHECK(admissions.give(12, "t3", {}, room) == Gpus{"C"});
}

TEST_CASE("a test that has just begun is expected to use as much as the others whose needs are not known") {
  Admissions admissions;
  admissions.spread({"A", "B"}, 1);
  CHECK(admissions.give(1, "a", {}, kRoom) == Gpus{"A"});
  CHECK(admissions.give(2, "b", {}, kRoom) == Gpus{"B"});
  admissions.ask(1, "a", Load{{"A", 0}}, 0s);
  CHECK(admissions.step(kRoom, 0s) == Ids{1});
  admissions.uses("a", {{"A", 300}});
  CHECK(admissions.give(3, "c", {}, kRoom) == Gpus{"A"});
  CHECK(admissions.give(4, "d", {}, kRoom) == Gpus{"B"});
  CHECK(admissions.give(5, "known", {100}, kRoom) == Gpus{"A"});
  CHECK(admissions.give(6, "e", {}, kRoom) == Gpus{"B"});
}

TEST_CASE("tests that follow each other take turns on the GPUs, too") {
  Admissions admissions;
  admissions.spread({"A", "B"}, 1);
  std::vector<Gpus> given;
  for (int who = 1; who <= 4; ++who) {
    given.push_back(admissions.give(who, "t" + std::to_string(who), {}, kRoom));
    admissions.ended(who);
  }
  CHECK(given == std::vector<Gpus>{{"A"}, {"B"}, {"A"}, {"B"}});
}

TEST_CASE("a test gets the GPU with most free memory: what is needed, used and promised there is not free") {
  Admissions admissions;
  admissions.spread({"A", "B"}, 1);
  CHECK(admissions.give(1, "large", {700}, kRoom) == Gpus{"A"});
  CHECK(admissions.give(2, "small", {200}, kRoom) == Gpus{"B"});
  CHECK(admissions.give(3, "other", {200}, kRoom) == Gpus{"B"});  // A has 300 left, B 800
  admissions.ask(1, "large", Load{{"A", 700}}, 0s);
  CHECK(admissions.step(kRoom, 0s) == Ids{1});
  admissions.uses("large", {{"A", 100}});
  CHECK(admissions.give(4, "more", {}, kRoom) == Gpus{"B"});  // 700 are kept, whatever is used
  admissions.ended(1);
  CHECK(admissions.give(5, "last", {}, kRoom) == Gpus{"A"});
  // Memory of others counts, too.
  CHECK(admissions.give(6, "beside", {}, {{"A", 100}, {"B", 1000}}) == Gpus{"B"});
}

TEST_CASE("memory promised to a test that ends before its first context is free again") {
  Admissions admissions;
  admissions.spread({"A", "B"}, 1);
  CHECK(admissions.give(1, "a", {900}, kRoom) == Gpus{"A"});
  admissions.ended(1);
  CHECK(admissions.give(2, "b", {100}, kRoom) == Gpus{"B"});
  CHECK(admissions.give(3, "c", {100}, kRoom) == Gpus{"A"});
}

TEST_CASE("a test that is larger than any GPU takes turns on the one with most free memory") {
  Admissions admissions;
  admissions.spread({"A", "B"}, 1);
  CHECK(admissions.give(1, "first", {400}, kRoom) == Gpus{"A"});
  CHECK(admissions.give(2, "huge", {5000}, kRoom) == Gpus{"B"});
  CHECK(admissions.give(3, "huge too", {5000}, kRoom) == Gpus{"A"});
  admissions.ask(2, "huge", Load{{"B", 5000}}, 0s);
  CHECK(admissions.step(kRoom, 0s) == Ids{2});
}

TEST_CASE("a test of several GPUs has those with most free memory, the one with most of it first") {
  Admissions admissions;
  admissions.spread({"A", "B", "C"}, 2);
  const Load room = {{"A", 1000}, {"B", 3000}, {"C", 2000}};
  CHECK(admissions.give(1, "a", {1500, 100}, room) == Gpus{"B", "C"});
  CHECK(admissions.give(2, "b", {}, room) == Gpus{"C", "B"});
}

TEST_CASE("a process that helps a test has its GPUs") {
  Admissions admissions;
  admissions.spread({"A", "B"}, 1);
  CHECK(admissions.give(1, "worker", {}, kRoom) == Gpus{"A"});
  admissions.take_over(2, "server", {"A"});
  CHECK(admissions.give(2, "server", {}, kRoom) == Gpus{"A"});
}

TEST_CASE("a test that chose its GPU itself counts there") {
  Admissions admissions;
  admissions.spread({"A", "B"}, 1);
  admissions.ask(1, "own", Load{{"A", 0}}, 0s);
  CHECK(admissions.step(kRoom, 0s) == Ids{1});
  CHECK(admissions.give(2, "a", {}, kRoom) == Gpus{"B"});
}
