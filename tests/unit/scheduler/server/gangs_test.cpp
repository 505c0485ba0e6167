// Gangs: tasks of several clients that have their turns together.
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>

#include "tests/unit/scheduler/server/rank.h"

namespace rota::test {
namespace {

using protocol::GpuLease;
using protocol::kGangMayEnd;
using protocol::kGangRests;
using protocol::kGangStands;
using protocol::Kind;
using protocol::LeasePage;

const std::vector<std::string> kExclusive = {"--mode", "exclusive", "--quantum", "20ms"};

void end_turn(Rank& one, Rank& two) {
  for (Rank* rank : {&one, &two}) rank->say(0, kGangMayEnd);
  REQUIRE(one.drains());
  REQUIRE(two.drains());
  for (Rank* rank : {&one, &two}) rank->say(rank->page().gang_step, kGangRests);
  REQUIRE(one.shows([](const GpuLease& page) { return page.gang_ends == page.grant; }));
  one.give_back_mine();
  two.give_back_mine();
}

TEST_CASE("the members of a gang are granted all their GPUs or none") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 1);
  Rank other(daemon.socket(), 1, "other");
  other.want_mine();
  REQUIRE(other.is_granted());
  one.join("job");
  two.join("job");
  REQUIRE(one.is_member());
  one.want_mine();
  REQUIRE(other.waited_for());
  CHECK(one.page().grant == 0);
  other.give_back_mine();
  REQUIRE(one.is_granted());
  REQUIRE(two.is_granted());  // although it has asked for nothing
  CHECK(one.page().grant == two.page().grant);
  CHECK(one.page().gang == two.page().gang);
}

TEST_CASE("a gang's turn ends for all members at once, when each may end it and all are idle") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 1);
  Rank other(daemon.socket(), 0, "other");
  one.join("job");
  two.join("job");
  REQUIRE(two.is_member());
  two.want_mine();
  REQUIRE(one.is_granted());
  other.want_mine();
  REQUIRE(one.waited_for());
  REQUIRE(two.waited_for());  // nobody wants its own GPU
  one.say(0, kGangMayEnd);
  one.catch_up();
  CHECK(one.page().gang_step == 0);
  two.say(0, kGangMayEnd);
  REQUIRE(one.drains());
  REQUIRE(two.drains());
  const std::uint32_t step = one.page().gang_step;
  // The first has run ahead: its work waits for a call of the second.
  one.say(step, 0);
  two.say(step, kGangRests | kGangStands);
  REQUIRE(two.drains(step + 1));
  const std::uint32_t next = two.page().gang_step;
  two.say(next, 0);
  two.say(next, kGangRests);
  one.say(step, kGangRests);  // of an earlier one
  one.catch_up();
  CHECK(one.page().gang_ends == 0);
  one.say(next, kGangRests);
  REQUIRE(one.shows([](const GpuLease& page) { return page.gang_ends == page.grant; }));
  one.give_back_mine();
  REQUIRE(one.ended());
  two.catch_up();
  CHECK(other.page().grant == 0);
  CHECK(two.page().grant != 0);
  two.give_back_mine();
  REQUIRE(other.is_granted());
  CHECK(two.page().grant == 0);
}

TEST_CASE("a gang takes its turn in order, however often its members ask") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 1);
  Rank other(daemon.socket(), 1, "other");
  one.join("job");
  two.join("job");
  REQUIRE(two.is_member());
  for (int turn = 0; turn < 5; ++turn) {
    Rank& asks = turn % 2 == 0 ? one : two;
    asks.want_mine();
    REQUIRE(one.is_granted());
    REQUIRE(two.is_granted());
    other.want_mine();
    REQUIRE(one.waited_for());
    end_turn(one, two);
    REQUIRE(other.is_granted());
    asks.want_mine();
    REQUIRE(other.waited_for());
    other.give_back_mine();
    REQUIRE(one.is_granted());
    other.want_mine();
    REQUIRE(two.waited_for());
    end_turn(one, two);
    REQUIRE(other.is_granted());
    other.give_back_mine();
    REQUIRE(other.ended());
  }
}

TEST_CASE("one program is no gang, and another name is another gang") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 1);
  one.join("job");
  two.join("another");
  one.want_mine();
  REQUIRE(one.is_granted());
  CHECK(one.page().gang == 0);
  two.catch_up();
  CHECK(two.page().grant == 0);
  const protocol::Snapshot all = status(daemon.socket());
  REQUIRE(all.gangs.size() == 2);
  CHECK(all.gangs.at(0).programs == 1);
  CHECK(all.task(one.number, one.gpu)->gang == 0);
}

TEST_CASE("a program that holds a GPU when it becomes a member gives that back first") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 1);
  one.want_mine();
  two.want_mine();
  REQUIRE(one.is_granted());
  REQUIRE(two.is_granted());
  one.join("job");
  two.join("job");
  REQUIRE(one.waited_for());
  REQUIRE(two.waited_for());
  CHECK(one.page().drain_at_ns != 0);
  one.give_back_mine();
  two.give_back_mine();
  REQUIRE(one.is_member());
  REQUIRE(two.is_member());
  one.want_mine();
  REQUIRE(two.is_granted());
  CHECK(one.page().gang == two.page().gang);
}

TEST_CASE("a program that joins a gang which holds its GPUs ends that turn, and has the next with it") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 1);
  Rank three(daemon.socket(), 2);
  one.join("job");
  two.join("job");
  REQUIRE(two.is_member());
  one.want_mine();
  REQUIRE(two.is_granted());
  three.join("job");
  REQUIRE(one.drains());
  end_turn(one, two);
  REQUIRE(three.is_member());
  three.want_mine();
  REQUIRE(three.is_granted());
  CHECK(one.page().grant == three.page().grant);
  CHECK(two.page().grant == three.page().grant);
}

TEST_CASE("a program that joins has no turn by itself meanwhile, and is waited for if the others' work waits for it") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 1);
  Rank three(daemon.socket(), 0);
  one.join("job");
  two.join("job");
  REQUIRE(two.is_member());
  one.want_mine();
  REQUIRE(two.is_granted());
  const std::uint32_t before = one.page().grant;
  three.join("job");
  three.want_mine();
  REQUIRE(one.drains());
  one.say(one.page().gang_step, 0);  // its kernel runs until the third's does
  two.say(one.page().gang_step, kGangRests);
  three.catch_up();
  CHECK(three.page().grant == 0);
  REQUIRE(three.is_granted());
  CHECK(one.page().grant == three.page().grant);
  CHECK(one.page().grant != before);
  CHECK(two.page().grant == three.page().grant);
}

TEST_CASE("when a member dies the others' turn ends, and they go on without it") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 1);
  Rank other(daemon.socket(), 2, "other");
  auto three = std::make_unique<Rank>(daemon.socket(), 2);
  for (Rank* rank : {&one, &two, three.get()}) rank->join("job");
  REQUIRE(three->is_member());
  one.want_mine();
  REQUIRE(three->is_granted());
  other.want_mine();
  SECTION("its connection ends") {
    // Its process is still alive: only a hello from it, or time, shows that it has left.
    three.reset();
  }
  SECTION("it says that its turn may end first") {
    three->say(0, kGangMayEnd);
    three.reset();
  }
  Client again(daemon.socket());  // the same process: what its closed connection held no longer counts
  REQUIRE(one.drains());
  end_turn(one, two);
  REQUIRE(other.is_granted());
  two.want_mine();
  REQUIRE(one.is_granted());
  CHECK(other.page().grant != 0);
}

TEST_CASE("a gang of a size that is known waits for all of its programs") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 1);
  one.join("job", 3);
  one.want_mine();  // not even before anybody else has come
  one.catch_up();
  CHECK(one.page().grant == 0);
  two.join("job", 3);
  REQUIRE(two.is_member());
  one.want_mine();
  one.catch_up();
  CHECK(one.page().grant == 0);
  auto three = std::make_unique<Rank>(daemon.socket(), 2);
  three->join("job", 3);
  REQUIRE(three->is_granted());
  CHECK(one.page().grant == three->page().grant);
  // One has done its work: the others need not wait for it.
  three.reset();
  Client again(daemon.socket());
  REQUIRE(one.drains());
  one.want_mine();
  end_turn(one, two);
  one.want_mine();
  CHECK(one.is_granted());
}

TEST_CASE("a gang that is revoked again and again is none for a while") {
  Daemon daemon({"--mode", "exclusive", "--quantum", "5ms", "--grace", "20ms"});
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 1);
  Rank other(daemon.socket(), 0, "other");
  one.join("job");
  two.join("job");
  REQUIRE(two.is_member());
  for (int turn = 0; turn < 3; ++turn) {
    one.want_mine();
    REQUIRE(one.is_granted());
    for (Rank* rank : {&one, &two}) rank->say(0, 0);  // they answer
    other.want_mine();
    REQUIRE(one.ended());  // for all at once
    REQUIRE(two.ended());
    REQUIRE(other.is_granted());
    other.give_back_mine();
    REQUIRE(other.ended());
  }
  REQUIRE(one.shows([](const GpuLease& page) { return page.gang == 0; }));
  REQUIRE(two.shows([](const GpuLease& page) { return page.gang == 0; }));
  CHECK(status(daemon.socket()).gangs.at(0).apart == protocol::GangApart::kNoRest);
  two.want_mine();
  REQUIRE(two.is_granted());
  CHECK(one.page().grant == 0);
}

TEST_CASE("members on one GPU hold it at the same time, and count as one with all that they have") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 0);
  Rank other(daemon.socket(), 0, "other");
  one.use(0, kGpuBytes / 4);
  two.use(0, kGpuBytes / 2);
  one.join("job");
  two.join("job");
  REQUIRE(two.is_member());
  const auto used = [&] { return status(daemon.socket()).gpus.at(0).used_bytes; };
  for (Rank* rank : {&one, &two, &other}) rank->say(0, 0);
  CHECK(eventually([&] { return used() == kGpuBytes; }));
  one.want_mine();
  REQUIRE(one.is_granted());
  REQUIRE(two.is_granted());
  CHECK(one.page().promised_bytes >= kGpuBytes / 4);
  CHECK(two.page().promised_bytes >= kGpuBytes / 2);
  other.want_mine();
  REQUIRE(two.waited_for());
  end_turn(one, two);
  REQUIRE(other.is_granted());
}

TEST_CASE("members whose memory does not fit on one GPU take turns by themselves") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 0);
  one.join("job");
  two.join("job");
  REQUIRE(two.is_member());
  const auto apart = [&] { return status(daemon.socket()).gangs.at(0).apart; };
  // More than the GPU has, but only a third of it has to be there at once.
  for (Rank* rank : {&one, &two}) {
    rank->usage->gpus[0].resident_bytes = kGpuBytes / 3;
    rank->use(0, kGpuBytes * 2);
    rank->say(0, 0);
    rank->catch_up();
  }
  one.want_mine();
  REQUIRE(one.is_granted());
  REQUIRE(two.is_granted());
  CHECK(apart() == protocol::GangApart::kNo);
  two.usage->gpus[0].short_bytes = kGpuBytes / 2;
  two.usage->gpus[0].refusals = 1;
  two.say(0, 0);
  CHECK(eventually([&] { return apart() == protocol::GangApart::kNoRoom; }));
  REQUIRE(one.drains());
  for (Rank* rank : {&one, &two}) rank->say(rank->page().gang_step, kGangRests);
  REQUIRE(one.ended());
  REQUIRE(two.ended());
  two.usage->gpus[0].short_bytes = 0;
  one.want_mine();
  REQUIRE(one.is_granted());
  CHECK(one.page().gang == 0);
  CHECK(two.page().grant == 0);
}

TEST_CASE("members whose memory fits on one GPU, but not next to programs without rota, take turns by themselves") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 0);
  one.join("job");
  two.join("job");
  REQUIRE(two.is_member());
  for (Rank* rank : {&one, &two}) {
    rank->usage->gpus[0].resident_bytes = kGpuBytes / 3;
    rank->use(0, kGpuBytes * 3 / 8);
    rank->say(0, 0);
    rank->catch_up();
  }
  one.want_mine();
  REQUIRE(two.is_granted());
  const auto apart = [&] { return status(daemon.socket()).gangs.at(0).apart; };
  CHECK(apart() == protocol::GangApart::kNo);
  // The driver has nothing free, although a third is free by rotad's accounts: it is asked repeatedly.
  CHECK(eventually([&] {
    two.usage->gpus[0].short_bytes = kGpuBytes / 8;
    two.usage->gpus[0].free_bytes = 0;
    ++two.usage->gpus[0].refusals;
    two.say(0, 0);
    return apart() == protocol::GangApart::kNoRoom;
  }));
}

TEST_CASE("the activity of all members is the gang's, and its drains are part of its hand-overs") {
  const TemporaryFolder folder;
  const std::string log = folder / "events";
  {
    Daemon daemon({"--mode", "exclusive", "--event-log", log});
    Rank one(daemon.socket(), 0);
    Rank two(daemon.socket(), 1);
    one.join("job");
    two.join("job");
    REQUIRE(two.is_member());
    const auto said = [](Rank& rank, std::uint64_t calls) {
      protocol::GpuUsage& page = rank.usage->gpus[rank.gpu];
      page.calls = calls;
      page.samples = 20;
      page.busy_samples = 30;  // more than there are
      page.counted_ns = calls;
      rank.say(0, 0);
      rank.catch_up();
    };
    said(one, 3);
    said(two, 4);
    Rank other(daemon.socket(), 0, "other");
    one.want_mine();
    REQUIRE(two.is_granted());
    other.want_mine();
    REQUIRE(two.waited_for());
    end_turn(one, two);
    REQUIRE(other.is_granted());
    said(two, 5);
    daemon.end(SIGTERM);
  }
  const std::string text = read_file(log);
  // calls, open, counted, samples, busy
  INFO(text);
  CHECK(text.find(" 3 0 3 20 20 ") != std::string::npos);
  CHECK(text.find(" 7 0 4 40 40 ") != std::string::npos);
  // in_spells, switches, switching
  const std::string after = " 8 0 5 40 40 0 0 ";
  REQUIRE(text.find(after) != std::string::npos);
  const std::uint64_t switching = std::stoull(text.substr(text.find(after) + after.size()));
  CHECK(switching > 0);
  CHECK(switching <= 10'000'000);
}

TEST_CASE("GPUs of a member can be coupled: it stays a member") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 1);
  REQUIRE_FALSE(one.add_gpu(3, nullptr, kGpuBytes));
  one.join("job");
  two.join("job");
  REQUIRE(two.is_member());
  one.want(5, false, 5);
  REQUIRE(two.is_granted());
  CHECK(one.lease->gpus[0].grant == two.page().grant);
  CHECK(one.lease->gpus[2].grant == two.page().grant);
  const protocol::Snapshot all = status(daemon.socket());
  CHECK(all.task(one.number, 2)->gpus == 5);
  CHECK(all.task(one.number, 2)->gang == all.task(two.number, 1)->gang);
}

TEST_CASE("a member gives back what it regards as one task, also where rotad has granted its GPUs as several") {
  Daemon daemon(kExclusive);
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 1);
  Rank other(daemon.socket(), 1, "other");
  REQUIRE_FALSE(one.add_gpu(3, nullptr, kGpuBytes));
  one.join("job");
  two.join("job");
  REQUIRE(two.is_member());
  two.want_mine();
  REQUIRE(two.is_granted());
  const std::uint32_t grant = two.page().grant;
  REQUIRE(one.lease->gpus[2].grant == grant);
  other.want_mine();
  REQUIRE(one.waited_for());
  one.usage->gpus[2].gang_rest = kGangMayEnd;
  for (Rank* rank : {&one, &two}) rank->say(0, kGangMayEnd);
  REQUIRE(one.drains());
  REQUIRE(two.drains());
  one.usage->gpus[2].gang_rest = std::uint64_t{one.page().gang_step} << 32 | kGangRests;
  for (Rank* rank : {&one, &two}) rank->say(rank->page().gang_step, kGangRests);
  REQUIRE(one.shows([](const GpuLease& page) { return page.gang_ends == page.grant; }));
  protocol::Message back = message(Kind::kGiveBack);
  back.body.give_back = {.grant = grant, .gpu = 0, .task = 5};
  send_packet(one.descriptor, &back, protocol::bytes_of(Kind::kGiveBack));
  two.give_back_mine();
  REQUIRE(other.is_granted());
  CHECK(one.lease->gpus[0].grant == 0);
  CHECK(one.lease->gpus[2].grant == 0);
}

TEST_CASE(
    "a gang whose members share memory may take turns with others, and does not have to run concurrently with them") {
  Daemon daemon({"--mode", "automatic"});
  Rank one(daemon.socket(), 0);
  Rank two(daemon.socket(), 1);
  Rank other(daemon.socket(), 0, "other");
  for (Rank* rank : {&one, &two, &other}) {
    rank->use(rank->gpu, kGpuBytes / 8);
    rank->usage->shares = rank != &other ? 1 : 0;
  }
  const auto come = [&] {
    for (Rank* rank : {&one, &two, &other}) {
      rank->want_mine();
      rank->say(0, 0);
    }
    one.catch_up();
    other.catch_up();
    return status(daemon.socket()).gpus.at(0).active;
  };
  CHECK(come() == 1);
  one.join("job");
  two.join("job");
  for (Rank* rank : {&one, &two}) rank->give_back_mine();
  REQUIRE(two.is_member());
  CHECK(eventually([&] { return come() == 2; }));
}

}  // namespace
}  // namespace rota::test
