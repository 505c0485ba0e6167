// Limits as clients of a real rotad see them.
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

using Catch::Contains;
using protocol::Kind;
constexpr std::uint64_t kMega = 1 << 20;

// On a GPU of 1 GiB.
struct Member : Client {
  explicit Member(const Daemon& daemon, std::uint64_t session_mega = 0) : Client(daemon.socket(), "member", false) {
    if (session_mega != 0) {
      protocol::Message message{.version = protocol::kVersion, .kind = Kind::kSession};
      std::strcpy(message.body.session.id, "abc");
      message.body.session.device_bytes = session_mega * kMega;
      message.body.session.host_bytes = protocol::kUnlimited;
      send_packet(descriptor, &message, sizeof message);
    }
    REQUIRE_FALSE(add_gpu(1, &gpu));
  }
  void reserve(std::uint64_t mega) {
    protocol::Message message{.version = protocol::kVersion, .kind = Kind::kReserve};
    message.body.reserve = {.gpu = gpu,
                            .number = ++asks,
                            .device_bytes = mega * kMega,
                            .movable_bytes = mega * kMega,
                            .fixed_bytes = 0,
                            .swapped_bytes = 0};
    send_packet(descriptor, &message, sizeof message);
  }
  // Reserves the part that stays, and what extents take.
  void reserve_to_fit(std::uint64_t fixed_mega, std::uint64_t swapped_mega) {
    protocol::Message message{.version = protocol::kVersion, .kind = Kind::kReserve};
    message.body.reserve = {.gpu = gpu,
                            .number = ++asks,
                            .device_bytes = (fixed_mega + swapped_mega) * kMega,
                            .movable_bytes = swapped_mega * kMega,
                            .fixed_bytes = fixed_mega * kMega,
                            .swapped_bytes = swapped_mega * kMega};
    send_packet(descriptor, &message, sizeof message);
  }
  void state(std::uint64_t mega, std::uint32_t round) {
    protocol::Message message{.version = protocol::kVersion, .kind = Kind::kState};
    message.body.state = {.gpu = gpu,
                          .answered = asks,
                          .device_bytes = mega * kMega,
                          .movable_bytes = mega * kMega,
                          .round = round,
                          .padding = 0,
                          .fixed_bytes = 0,
                          .swapped_bytes = 0};
    send_packet(descriptor, &message, sizeof message);
  }
  protocol::Message next() const {
    const auto message = receive(descriptor);
    REQUIRE(message);
    return *message;
  }
  protocol::Reserved answer() const {
    const protocol::Message message = next();
    REQUIRE(message.kind == Kind::kReserved);
    CHECK(message.body.reserved.number == asks);
    return message.body.reserved;
  }
  // rotad first asks the client itself what it needs, and gets no answer.
  protocol::Reserved answer_after_tighten() const {
    for (;;) {
      const protocol::Message message = next();
      if (message.kind == Kind::kReserved) return message.body.reserved;
      REQUIRE(message.kind == Kind::kTighten);
    }
  }
  std::uint32_t gpu = 0;
  std::uint32_t asks = 0;
};

}  // namespace

TEST_CASE("the clients of a session share its limit, and rotad asks the others before it refuses") {
  const Daemon daemon;
  Member one(daemon, 500);
  Member two(daemon, 500);
  one.reserve(300);
  CHECK(one.answer().device_bytes >= 300 * kMega);
  two.reserve(250);
  const protocol::Message question = one.next();
  REQUIRE(question.kind == Kind::kTighten);
  SECTION("those who need what they have keep it") {
    one.state(300, question.body.tighten.round);
    const protocol::Reserved answer = two.answer();
    CHECK(answer.granted == 0);
    CHECK_THAT(answer.text, Contains("session abc may have 500 MiB on each GPU"));
    two.reserve(200);
    CHECK(two.answer().granted == 1);
    CHECK(two.lease->limit_bytes == 500 * kMega);
    CHECK(two.wait_for([&](const protocol::LeasePage& page) { return page.gpus[two.gpu].left_bytes == 0; }));
  }
  SECTION("what has been freed meanwhile is there") {
    one.state(100, question.body.tighten.round);
    CHECK(two.answer().granted == 1);
  }
  SECTION("who says nothing is waited for a moment only") {
    CHECK(two.answer().granted == 0);
  }
}

TEST_CASE("what a program reserves after its page says that all of its memory stays counts as what stays at once") {
  const Daemon daemon;
  Member one(daemon);
  Member two(daemon);
  for (Member* each : {&one, &two}) {
    each->usage->gpus[each->gpu].pinned_all = static_cast<std::uint8_t>(protocol::PinAll::kUnseen);
  }
  one.reserve_to_fit(0, 600);
  CHECK(one.answer().granted == 1);
  two.reserve_to_fit(0, 600);
  const protocol::Reserved answer = two.answer_after_tighten();
  CHECK(answer.granted == 0);
  CHECK(answer.full == 1);
}

TEST_CASE("limits that are read again hold for programs that run, and the log of it can be replayed") {
  const TemporaryFolder folder;
  const std::string file = folder / "rotad.toml";
  const std::string log = folder / "events";
  write_file(file, "[limits.session]\ngpu = \"700M\"\n");
  {
    const Daemon daemon({"--config", file, "--event-log", log});
    const std::string control = daemon.socket() + ".control";
    Member one(daemon, 600);
    one.reserve(300);
    REQUIRE(one.answer().granted == 1);
    const auto reload = [&](const std::string& limits, std::uint64_t has) {
      write_file(file, limits);
      CHECK(ask_control(control, "reload") == "ok: " + file + ": limits changed");
      const protocol::Message question = one.next();
      REQUIRE(question.kind == Kind::kTighten);
      one.state(has, question.body.tighten.round);
    };
    reload("[limits.user]\ngpu = \"400M\"\n", 300);
    CHECK(one.lease->limit_bytes == 400 * kMega);
    one.reserve(500);
    CHECK_THAT(one.answer_after_tighten().text, Contains("may have 400 MiB on each GPU") && Contains("limits.user"));
    Member two(daemon);
    CHECK(two.lease->limit_bytes == 400 * kMega);
    reload("", 300);
    CHECK(one.lease->limit_bytes == 600 * kMega);
    CHECK(two.lease->limit_bytes == protocol::kUnlimited);
    one.reserve(500);
    CHECK(one.answer_after_tighten().granted == 1);
    reload("[limits.session]\ngpu = \"200M\"\n[limits.process]\nhost = \"1M\"\n", 500);
    CHECK(one.lease->limit_bytes == 200 * kMega);
    CHECK(one.lease->gpus[one.gpu].left_bytes == 0);
    CHECK(one.wait_for([](const protocol::LeasePage& page) { return page.host_limited == 1; }));
    one.reserve(501);
    CHECK_THAT(one.answer_after_tighten().text, Contains("session abc may have 200 MiB"));
    // It keeps what it has, and may have less.
    one.reserve(150);
    CHECK(one.answer_after_tighten().granted == 1);
    reload("", 150);
    CHECK(one.wait_for([](const protocol::LeasePage& page) { return page.host_limited == 0; }));
  }
  const Outcome again = run({.arguments = {ROTAD, "--replay", log}, .environment = {}});
  CHECK(again.errors == "");
  CHECK(again.code() == 0);
  CHECK_THAT(read_file(log), Contains(" configure session%20") && Contains(" configure process%20"));
}

TEST_CASE("a new rotad waits for what programs of the one before it have, before it grants others what is limited") {
  const TemporaryFolder folder;
  write_file(folder / "rotad.toml", "[limits.user]\ngpu = \"400M\"\n");
  const std::vector<std::string> options = {"--config", folder / "rotad.toml", "--lock-directory", folder / "locks"};
  const std::string socket = folder / "s/rotad.sock";
  {
    Daemon before(options, socket);
    const Member old(before);
    SECTION("that was killed") {
      before.end(SIGKILL);
    }
    SECTION("that ended") {
      before.end(SIGTERM);
    }
  }
  const Daemon daemon(options, socket);
  Member fresh(daemon);
  fresh.reserve(300);
  Member old(daemon);
  old.state(200, 0);
  const protocol::Message question = old.next();
  REQUIRE(question.kind == Kind::kTighten);
  old.state(200, question.body.tighten.round);
  CHECK(fresh.answer().granted == 0);
  fresh.reserve(200);
  CHECK(fresh.answer().granted == 1);
}

TEST_CASE("a client that has its answer finds in its page what that leaves") {
  const Daemon daemon;
  // rotad writes the pages of all that share the limit, the last one's last.
  std::vector<std::unique_ptr<Member>> others;
  for (int i = 0; i < 60; ++i) others.push_back(std::make_unique<Member>(daemon, 561));
  Member last(daemon, 561);
  for (std::uint64_t mega = 1; mega <= 400; ++mega) {
    last.reserve(mega);
    const protocol::Reserved answer = last.answer();
    REQUIRE(answer.granted == 1);
    // Each of them has said that its context takes 1 MiB.
    REQUIRE(last.lease->gpus[last.gpu].left_bytes == 500 * kMega - answer.device_bytes);
    last.state(0, 0);
  }
}

TEST_CASE("a page says that there is no limit where there is none") {
  const Daemon daemon;
  const Member one(daemon);
  CHECK(one.lease->limit_bytes == protocol::kUnlimited);
  CHECK(one.lease->gpus[one.gpu].left_bytes == protocol::kUnlimited);
}

TEST_CASE("a configuration limits what its users have, whatever sessions they open") {
  const TemporaryFolder folder;
  write_file(folder / "rotad.toml", "[limits.user]\ngpu = \"400M\"\n");
  const Daemon daemon({"--config", folder / "rotad.toml"});
  Member one(daemon, 500);
  one.reserve(401);
  const protocol::Reserved answer = one.answer();
  CHECK(answer.granted == 0);
  CHECK_THAT(answer.text, Contains("user "));
  one.reserve(400);
  CHECK(one.answer().granted == 1);
  CHECK(one.lease->limit_bytes == 400 * kMega);
  const protocol::Snapshot rows = status(daemon.socket());
  REQUIRE(rows.accounts.size() == 2);
  for (const protocol::AccountRow& account : rows.accounts) {
    CHECK(account.clients == 1);
    CHECK(account.device_used == 400 * kMega);
  }
}

TEST_CASE("a configuration that cannot be read keeps rotad from starting, with its line") {
  const TemporaryFolder folder;
  write_file(folder / "rotad.toml", "[limits.user]\ngpu = \"lots\"\n");
  const Outcome outcome =
      run({.arguments = {ROTAD, "--socket", folder / "sock", "--config", folder / "rotad.toml"}, .environment = {}});
  CHECK(outcome.code() == 1);
  CHECK_THAT(outcome.errors, Contains("rotad.toml, line 2: an amount of memory is expected"));
}

TEST_CASE("the command line comes before the configuration") {
  const TemporaryFolder folder;
  write_file(folder / "rotad.toml", "mode = \"exclusive\"\nquantum = \"70ms\"\n");
  const Daemon daemon({"--config", folder / "rotad.toml", "--quantum", "90ms"});
  const protocol::Snapshot rows = status(daemon.socket());
  CHECK(rows.daemon.mode == protocol::Mode::kExclusive);
  CHECK(rows.daemon.quantum_ns == 90'000'000);
}

TEST_CASE("who speaks of GPUs that it has not named, or of limits in an older version, is not heard") {
  const Daemon daemon;
  Member one(daemon);
  protocol::Message message{.version = protocol::kVersion, .kind = Kind::kReserve};
  message.body.reserve = {
      .gpu = 63, .number = 9, .device_bytes = kMega, .movable_bytes = 0, .fixed_bytes = kMega, .swapped_bytes = 0};
  send_packet(one.descriptor, &message, sizeof message);
  message.body.reserve.gpu = 0xffffffff;
  send_packet(one.descriptor, &message, sizeof message);
  message.kind = Kind::kState;
  message.body.state = {.gpu = 64,
                        .answered = 0,
                        .device_bytes = kMega,
                        .movable_bytes = 0,
                        .round = 0,
                        .padding = 0,
                        .fixed_bytes = kMega,
                        .swapped_bytes = 0};
  send_packet(one.descriptor, &message, sizeof message);
  one.reserve(1);
  CHECK(one.answer().granted == 1);
}

TEST_CASE(
    "memory that stays is not available to swap memory, whichever client asks first, and pages say how much others "
    "have") {
  const Daemon daemon;
  Member swaps(daemon);
  Member stays(daemon);
  swaps.reserve_to_fit(0, 700);
  CHECK(swaps.answer().granted == 1);
  stays.reserve_to_fit(200, 0);
  CHECK(stays.answer().granted == 1);
  CHECK(swaps.lease->gpus[swaps.gpu].fixed_of_others_bytes >= 200 * kMega);
  CHECK(stays.lease->gpus[stays.gpu].fixed_of_others_bytes == 0);
  stays.reserve_to_fit(400, 0);
  const protocol::Message question = swaps.next();
  REQUIRE(question.kind == Kind::kTighten);
  const protocol::Reserved answer = stays.answer_after_tighten();
  CHECK(answer.granted == 0);
  CHECK_THAT(answer.text, Contains("cannot be evicted, and"));
}

}  // namespace rota::test
