// What a program says while rotad does not read it.
#include "runtime/client/connection.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/unit/runtime/monitor/fake_rotad.h"

using namespace rota;
using protocol::Kind;
using protocol::Message;

namespace {

// More than any socket holds by default.
constexpr std::uint64_t kMany = 900;

Message room(std::uint64_t bytes) {
  Message message{.kind = Kind::kRoom};
  message.body.room = {.gpu = 0, .padding = 0, .bytes = bytes};
  return message;
}

}  // namespace

TEST_CASE("what rotad does not read for a while is kept and comes in order, news of memory once") {
  test::FakeRotad rotad;
  const auto connection = client::Connection::open().connection;
  REQUIRE(connection);
  rotad.read(false);
  for (std::uint64_t bytes = 1; bytes <= kMany; ++bytes) REQUIRE(connection->send(room(bytes)));
  REQUIRE(connection->has_unsent());
  for (std::uint64_t number = 0; number < kMany; ++number) REQUIRE(connection->send(Message{.kind = Kind::kUsage}));
  // Memory is not handed over then: it goes back to the driver.
  CHECK(connection->send(Message{.kind = Kind::kHandOver}, 0));
  CHECK(connection->send(room(kMany + 1)));
  rotad.read(true);
  for (int tries = 0; connection->has_unsent() && tries < 20'000; ++tries) {
    REQUIRE(connection->flush());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (std::uint64_t bytes = 1; bytes <= kMany; ++bytes) {
    const Message message = rotad.next();
    REQUIRE(message.kind == Kind::kRoom);
    REQUIRE(message.body.room.bytes == bytes);
  }
  CHECK(rotad.next().kind == Kind::kUsage);
  CHECK(rotad.next().body.room.bytes == kMany + 1);
  CHECK(rotad.quiet());
}

TEST_CASE("a rotad that does not welcome a program at once may do so later, on the same connection") {
  test::FakeRotad rotad;
  rotad.read(false);
  client::Connection::Attempt attempt = client::Connection::open(std::chrono::milliseconds(20));
  CHECK_FALSE(attempt.connection);
  REQUIRE(attempt.unanswered);
  CHECK(attempt.reason.find("does not answer") != std::string::npos);
  std::string reason;
  CHECK(attempt.unanswered->welcome(reason) == client::Connection::Welcome::kNotYet);
  SECTION("it does") {
    rotad.read(true);
    auto welcome = client::Connection::Welcome::kNotYet;
    for (int tries = 0; tries < 20'000 && welcome == client::Connection::Welcome::kNotYet; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      welcome = attempt.unanswered->welcome(reason);
    }
    REQUIRE(welcome == client::Connection::Welcome::kYes);
    CHECK(attempt.unanswered->send(room(1)));
    CHECK(rotad.next().body.room.bytes == 1);
    CHECK(rotad.clients() == 1);
  }
  SECTION("it dies") {
    rotad.die();
    CHECK(attempt.unanswered->welcome(reason) == client::Connection::Welcome::kNo);
    CHECK_FALSE(reason.empty());
  }
}

TEST_CASE("how long rotad has read nothing is known, and one that is merely behind reads") {
  using namespace std::chrono_literals;
  test::FakeRotad rotad;
  const auto connection = client::Connection::open().connection;
  REQUIRE(connection);
  CHECK(connection->unread_for(10s) == 0s);
  rotad.read(false);
  REQUIRE(connection->send(room(1)));
  connection->unread_for(11s);
  CHECK(connection->unread_for(12s) == 1s);
  REQUIRE(connection->send(room(2)));
  CHECK(connection->unread_for(14s) == 3s);
  // This program was stopped itself, or did not check for another reason.
  CHECK(connection->unread_for(20s) == 0s);
  CHECK(connection->unread_for(21s) == 1s);
  rotad.read(true);
  CHECK(rotad.next().body.room.bytes == 1);
  CHECK(rotad.next().body.room.bytes == 2);
  CHECK(connection->unread_for(22s) == 0s);
}

TEST_CASE("a rotad that never reads again counts as gone, and so does one that hangs up") {
  test::FakeRotad rotad;
  const auto connection = client::Connection::open().connection;
  REQUIRE(connection);
  SECTION("it never reads") {
    rotad.read(false);
    std::uint64_t sent = 0;
    while (sent < 100'000 && connection->send(room(sent))) ++sent;
    CHECK(sent > kMany);
    CHECK(sent < 100'000);
    CHECK_FALSE(connection->flush());
  }
  SECTION("it hangs up") {
    rotad.die();
    CHECK_FALSE(connection->send(room(1)));
  }
}
