// Programs that have memory of others open have their turns together with those for as long as they have, and a member
// that does not answer is left out.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/scheduler/server/rank.h"

namespace rota::test {
namespace {

using protocol::GangWhy;
using protocol::GpuLease;
using protocol::kGangMayEnd;
using protocol::kGangRests;
using protocol::Kind;
using protocol::ProcessNumber;

const std::vector<std::string> kExclusive = {"--mode", "exclusive", "--quantum", "20ms"};
constexpr ProcessNumber kNumber{{7, 8}};

void announce(const Client& client, const ProcessNumber& number) {
  protocol::Message told = message(Kind::kAnnounce);
  told.body.announce = {.number = number};
  send_packet(client.descriptor, &told, protocol::bytes_of(told.kind));
}

void say_opened(const Client& client, const ProcessNumber& number, bool open) {
  protocol::Message told = message(Kind::kOpened);
  told.body.opened = {.number = number, .open = open ? 1U : 0U, .padding = 0};
  send_packet(client.descriptor, &told, protocol::bytes_of(told.kind));
}

// How many programs are of each gang, in the order of the gangs' numbers.
std::vector<std::uint32_t> gangs(const Daemon& daemon) {
  std::vector<std::uint32_t> programs;
  for (const protocol::GangRow& gang : status(daemon.socket()).gangs) programs.push_back(gang.programs);
  return programs;
}

using Programs = std::vector<std::uint32_t>;

struct Sharer : Rank {
  // `gang`: because of memory, as in a `rota run`; empty: it names none.
  explicit Sharer(const Daemon& daemon, const std::string& gang = "", const ProcessNumber& number = {})
      : Rank(daemon.socket(), 0) {
    use(0, kGpuBytes / 8);
    if (!gang.empty()) join(gang, 0, GangWhy::kMemory);
    if (number != ProcessNumber{}) announce(*this, number);
    catch_up();
  }
  void opens(const ProcessNumber& number = kNumber) {
    say_opened(*this, number, true);
    catch_up();
  }
  void closes(const ProcessNumber& number = kNumber) {
    say_opened(*this, number, false);
    catch_up();
  }
  bool is_alone() const {
    return shows([](const GpuLease& page) { return page.gang == 0; });
  }
};

void end_turn(const std::vector<Rank*>& ranks) {
  for (Rank* rank : ranks) rank->say(0, kGangMayEnd);
  for (Rank* rank : ranks) {
    REQUIRE(rank->drains());
    rank->say(rank->page().gang_step, kGangRests);
  }
  for (Rank* rank : ranks) {
    REQUIRE(rank->shows([](const GpuLease& page) { return page.gang_ends == page.grant; }));
    rank->give_back_mine();
  }
}

TEST_CASE("a program that opens memory of another gives its lease back, and both have their turns together") {
  const Daemon daemon(kExclusive);
  const bool named = GENERATE(false, true);  // each a gang of its own, as in two `rota run`s
  Sharer exporter(daemon, named ? "a" : "", kNumber);
  Sharer opener(daemon, named ? "b" : "");
  opener.want_mine();
  REQUIRE(opener.is_granted());
  opener.opens();
  REQUIRE(opener.waited_for());
  CHECK(exporter.page().grant == 0);
  opener.give_back_mine();
  REQUIRE(opener.is_member());
  REQUIRE(exporter.is_member());
  opener.want_mine();
  REQUIRE(opener.is_granted());
  REQUIRE(exporter.is_granted());
  CHECK(exporter.page().gang == opener.page().gang);
  CHECK(gangs(daemon) == Programs{2});
}

TEST_CASE("programs are no gang any more once the last memory is closed, and of their own gangs again") {
  const Daemon daemon(kExclusive);
  const bool named = GENERATE(false, true);
  const bool dies = GENERATE(false, true);
  auto exporter = std::make_unique<Sharer>(daemon, named ? "a" : "", kNumber);
  Sharer opener(daemon, named ? "b" : "");
  Sharer also_there(daemon, named ? "b" : "");
  opener.opens();
  REQUIRE(opener.is_member());
  const Programs of_all = {named ? 3U : 2U};
  CHECK(gangs(daemon) == of_all);
  if (dies) {
    exporter.reset();
    Client again(daemon.socket());  // the same process: what its closed connection had no longer counts
  } else {
    opener.want_mine();
    REQUIRE(exporter->is_granted());
    opener.closes();
    std::vector<Rank*> members = {exporter.get(), &opener};
    if (named) members.push_back(&also_there);
    end_turn(members);
    CHECK(exporter->is_alone());
  }
  if (named) {
    CHECK(opener.is_member());
    CHECK(gangs(daemon) == (dies ? Programs{2} : Programs{1, 2}));
  } else {
    CHECK(opener.is_alone());
    CHECK(gangs(daemon).empty());
  }
  opener.want_mine();
  REQUIRE(opener.is_granted());
  if (!dies) CHECK(exporter->page().grant == 0);
}

TEST_CASE("programs that are connected by others have their turns together as long as they are") {
  const Daemon daemon(kExclusive);
  constexpr ProcessNumber kSecond{{9, 9}};
  Sharer first(daemon, "", kNumber);
  Sharer second(daemon, "", kSecond);
  Sharer third(daemon);
  third.opens(kSecond);
  CHECK(gangs(daemon) == Programs{2});
  CHECK(first.is_alone());
  second.opens(kNumber);
  CHECK(gangs(daemon) == Programs{3});
  REQUIRE(first.is_member());
  third.opens(kNumber);
  second.closes(kNumber);
  CHECK(gangs(daemon) == Programs{3});
  third.closes(kNumber);
  CHECK(gangs(daemon) == Programs{2});
  CHECK(first.is_alone());
  CHECK(second.page().gang == third.page().gang);
  CHECK(third.page().gang != 0);
}

TEST_CASE("each of two programs can have memory of the other open: they are a gang until both have closed it") {
  const Daemon daemon(kExclusive);
  constexpr ProcessNumber kSecond{{9, 9}};
  Sharer first(daemon, "", kNumber);
  Sharer second(daemon, "", kSecond);
  first.opens(kSecond);
  second.opens(kNumber);
  first.closes(kSecond);
  CHECK(gangs(daemon) == Programs{2});
  second.closes(kNumber);
  CHECK(gangs(daemon).empty());
}

TEST_CASE("a program that has opened memory is of the gang that it names later, and so are those that share it") {
  const Daemon daemon(kExclusive);
  const std::uint32_t size = GENERATE(0, 2);
  const GangWhy why = GENERATE(GangWhy::kNamed, GangWhy::kCollective);
  Sharer exporter(daemon, "a", kNumber);
  Sharer opener(daemon, "b");
  Sharer of_job(daemon);
  Sharer of_session(daemon, "b");
  opener.opens();
  CHECK(gangs(daemon) == Programs{3});
  opener.join("job", size, why);
  of_job.join("job", size, why);
  REQUIRE(of_job.is_member());
  of_job.want_mine();
  REQUIRE(opener.is_granted());
  CHECK(opener.page().gang == of_job.page().gang);
  of_session.catch_up();
  CHECK(of_session.page().grant == 0);
  CHECK(gangs(daemon) == Programs{1, 3});
  const auto rows = status(daemon.socket()).gangs;
  CHECK(std::string(rows.at(1).name) == "job");
  CHECK(rows.at(1).why == why);
}

TEST_CASE("what ROTA_GANG or a launch has named stays as it is, whatever memory its programs open") {
  const Daemon daemon(kExclusive);
  Sharer exporter(daemon, "", kNumber);
  Sharer opener(daemon);
  exporter.join("a");
  opener.join("b");
  opener.opens();
  CHECK(gangs(daemon) == Programs{1, 1});
  // The first such name counts.
  opener.join("a");
  opener.catch_up();
  CHECK(gangs(daemon) == Programs{1, 1});
}

TEST_CASE("a program that shares memory with a gang that waits for its programs does not wait for them") {
  const Daemon daemon(kExclusive);
  Sharer exporter(daemon, "", kNumber);
  Sharer opener(daemon);
  exporter.join("job", 2);
  opener.opens();
  opener.want_mine();
  REQUIRE(opener.is_granted());
  Sharer late(daemon);
  late.join("job", 2);
  late.want_mine();
  REQUIRE(opener.waited_for());
  opener.give_back_mine();
  REQUIRE(opener.is_member());
  CHECK(gangs(daemon) == Programs{3});
}

TEST_CASE("who opens memory may say so before the other one has come, and is of no gang that others need not be of") {
  const Daemon daemon(kExclusive);
  Sharer opener(daemon);
  opener.opens();
  CHECK(gangs(daemon).empty());
  {
    const Sharer exporter(daemon, "", kNumber);
    REQUIRE(opener.is_member());
  }
  Client again(daemon.socket());
  CHECK(opener.is_alone());
  Sharer exporter(daemon, "", kNumber);
  REQUIRE(opener.is_member());
  announce(exporter, {{1, 2}});
  exporter.catch_up();
  CHECK(opener.is_alone());
  // Ranks of a job on several machines say that they are of none.
  announce(exporter, kNumber);
  exporter.catch_up();
  REQUIRE(opener.is_member());
  exporter.join("", 0, GangWhy::kNone);
  exporter.catch_up();
  CHECK(opener.is_alone());
}

TEST_CASE("one client can fill neither a gang nor a list of those that it has opened memory of") {
  const Daemon daemon(kExclusive);
  Sharer exporter(daemon, "", kNumber);
  Sharer opener(daemon);
  for (std::uint64_t each = 0; each < protocol::kMostOpened; ++each) say_opened(opener, {{each, 1}}, true);
  opener.opens();
  CHECK(gangs(daemon).empty());
  say_opened(opener, {{0, 1}}, false);
  opener.opens();
  CHECK(gangs(daemon) == Programs{2});
  std::vector<std::unique_ptr<Client>> more;
  for (std::uint32_t each = 0; each < protocol::kMostInGang; ++each) {
    more.push_back(std::make_unique<Client>(daemon.socket(), "more", false));
    say_opened(*more.back(), kNumber, true);
  }
  CHECK(eventually([&] { return gangs(daemon) == Programs{protocol::kMostInGang}; }));
  REQUIRE_FALSE(more.back()->add_gpu(1));
  CHECK(gangs(daemon) == Programs{protocol::kMostInGang});
}

TEST_CASE("a member that does not answer costs others one turn, and is a member again as soon as it says something") {
  const Daemon daemon({"--mode", "exclusive", "--quantum", "5ms", "--grace", "100ms"});
  Sharer one(daemon, "", kNumber);
  Sharer stopped(daemon);
  Rank other(daemon.socket(), 0, "other");
  other.use(0, kGpuBytes / 8);
  const bool opened = GENERATE(true, false);
  if (opened) stopped.opens();
  if (!opened) {
    one.join("job");
    stopped.join("job");
  }
  REQUIRE(stopped.is_member());
  enum class Last { kNothing, kBefore, kWithin };
  const Last last = GENERATE(Last::kNothing, Last::kBefore, Last::kWithin);
  const auto may_end = [&] {
    stopped.say(0, kGangMayEnd);
    stopped.catch_up();
  };
  if (last == Last::kBefore) may_end();
  one.want_mine();
  REQUIRE(stopped.is_granted());
  if (last == Last::kWithin) may_end();
  other.want_mine();
  one.say(0, kGangMayEnd);
  if (one.shows([](const GpuLease& page) { return page.gang_step != 0 || page.grant == 0; }) && one.page().grant != 0) {
    one.say(one.page().gang_step, kGangRests);
  }
  REQUIRE(other.is_granted());  // after the grace period
  REQUIRE(stopped.is_alone());
  CHECK(one.is_alone());
  for (int turn = 0; turn < 5; ++turn) {
    one.want_mine();
    REQUIRE(other.waited_for());
    other.give_back_mine();
    REQUIRE(one.is_granted());
    CHECK(stopped.page().grant == 0);
    other.want_mine();
    REQUIRE(one.waited_for());
    one.give_back_mine();
    REQUIRE(other.is_granted());
  }
  stopped.want_mine();
  REQUIRE(stopped.is_member());
  CHECK(one.page().gang == stopped.page().gang);
  other.give_back_mine();
  REQUIRE(one.is_granted());
}

TEST_CASE("a member whose turn may end is not left out where another one keeps the turn from ending") {
  const Daemon daemon({"--mode", "exclusive", "--quantum", "5ms", "--grace", "50ms"});
  Sharer busy(daemon, "", kNumber);
  Sharer idle(daemon);
  Rank other(daemon.socket(), 0, "other");
  other.use(0, kGpuBytes / 8);
  idle.opens();
  REQUIRE(busy.is_member());
  idle.say(0, kGangMayEnd);
  idle.catch_up();
  busy.want_mine();
  REQUIRE(idle.is_granted());
  busy.say(0, 0);
  other.want_mine();
  REQUIRE(other.is_granted());  // after the grace period
  other.give_back_mine();
  busy.want_mine();
  REQUIRE(idle.is_granted());
  CHECK(idle.page().gang == busy.page().gang);
}

TEST_CASE("programs whose work has not finished together stay apart although they open the memory anew") {
  const Daemon daemon({"--mode", "exclusive", "--quantum", "5ms", "--grace", "100ms"});
  Sharer exporter(daemon, "", kNumber);
  Sharer opener(daemon);
  Sharer other(daemon);
  opener.opens();
  for (int turn = 0; turn < 3; ++turn) {
    REQUIRE(opener.is_member());
    exporter.want_mine();
    REQUIRE(opener.is_granted());
    for (Sharer* each : {&exporter, &opener}) {
      each->catch_up();
      each->say(0, 0);  // its work goes on
    }
    other.want_mine();
    REQUIRE(other.is_granted());  // the gang's grant was revoked
    other.give_back_mine();
    other.catch_up();
    for (Sharer* each : {&exporter, &opener}) {
      each->give_back_mine();
      each->catch_up();
    }
  }
  REQUIRE(opener.is_alone());
  opener.closes();
  opener.opens();
  const auto known = status(daemon.socket()).gangs;
  REQUIRE(known.size() == 1);
  CHECK(known[0].apart == protocol::GangApart::kNoRest);
}

TEST_CASE("a member that has given back before the others drain is not left out") {
  const Daemon daemon({"--mode", "exclusive", "--quantum", "5ms", "--grace", "200ms"});
  Rank one(daemon.socket(), 0);
  Rank works(daemon.socket(), 0);
  Rank early(daemon.socket(), 0);
  Rank other(daemon.socket(), 0);
  for (Rank* each : {&one, &works, &early, &other}) each->use(0, kGpuBytes / 8);
  for (Rank* each : {&one, &works, &early}) each->join("job");
  for (Rank* each : {&one, &works, &early}) REQUIRE(each->is_member());
  one.want_mine();
  for (Rank* each : {&one, &works, &early}) REQUIRE(each->is_granted());
  early.give_back_mine();
  early.catch_up();
  other.want_mine();
  for (Rank* each : {&one, &works}) each->say(0, kGangMayEnd);
  REQUIRE(one.drains());
  one.say(one.page().gang_step, kGangRests);
  works.say(works.page().gang_step, 0);
  REQUIRE(other.is_granted());
  other.catch_up();
  CHECK(early.page().gang != 0);
}

}  // namespace
}  // namespace rota::test
