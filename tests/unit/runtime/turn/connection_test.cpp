// What a program says while rotad does not read it.
#include "runtime/turn/connection.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/unit/runtime/turn/fake_rotad.h"

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
  const auto connection = turn::Connection::open().connection;
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

TEST_CASE("a rotad that never reads again counts as gone, and so does one that hangs up") {
  test::FakeRotad rotad;
  const auto connection = turn::Connection::open().connection;
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
