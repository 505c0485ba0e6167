// Which holders rotad tells that a client waits that may share memory or events with them.
#include <catch2/catch.hpp>
#include <initializer_list>
#include <string>

#include "tests/unit/scheduler/server/rank.h"

namespace rota::test {
namespace {

struct Sharer : Rank {
  // `sessions`: of the `rota run`s around it, the outermost first.
  Sharer(const Daemon& daemon, std::uint32_t shares, std::initializer_list<std::string> sessions = {})
      : Rank(daemon.socket(), 0) {
    for (const std::string& session : sessions) {
      protocol::Message named = message(protocol::Kind::kSession);
      session.copy(named.body.session.id, protocol::kSessionLength - 1);
      named.body.session.device_bytes = named.body.session.host_bytes = protocol::kUnlimited;
      send_packet(descriptor, &named, protocol::bytes_of(protocol::Kind::kSession));
    }
    usage->shares = shares;
  }
  bool gives_way() const { return (page().watch & protocol::kWatchSharers) != 0; }
};

// Whether the first is told that the second waits, and may share something with it.
bool is_told(Sharer& first, Sharer& second) {
  first.want_mine();
  REQUIRE(first.is_granted());
  second.want_mine();
  REQUIRE(first.waited_for());
  return first.gives_way();
}

constexpr std::uint32_t kExports = protocol::kSharesOwn;
constexpr std::uint32_t kOpens = protocol::kSharesOfOthers;

TEST_CASE("a holder is told of a waiting program only if the two can share something") {
  Daemon daemon({"--mode", "exclusive"});
  SECTION("not if each has exported something, and neither has opened anything") {
    Sharer first(daemon, kExports, {"one"});
    Sharer second(daemon, kExports, {"two"});
    CHECK_FALSE(is_told(first, second));
    // The holder opens something while the other waits.
    first.usage->shares = kExports | kOpens;
    first.send_kind(protocol::Kind::kUsage);
    first.catch_up();
    CHECK(first.gives_way());
  }
  SECTION("nor without any session") {
    Sharer first(daemon, kExports);
    Sharer second(daemon, kExports);
    CHECK_FALSE(is_told(first, second));
    // The one that waits opens something.
    second.usage->shares = kOpens;
    second.send_kind(protocol::Kind::kUsage);
    second.catch_up();
    CHECK(first.gives_way());
  }
  SECTION("nor if only an outer session is the same") {
    Sharer first(daemon, kExports, {"outer", "one"});
    Sharer second(daemon, kExports, {"outer", "two"});
    CHECK_FALSE(is_told(first, second));
  }
  SECTION("but if one has opened what another exports") {
    Sharer first(daemon, kExports, {"one"});
    Sharer second(daemon, kOpens, {"two"});
    CHECK(is_told(first, second));
  }
  SECTION("but if the innermost session is the same") {
    Sharer first(daemon, kExports, {"outer", "one"});
    Sharer second(daemon, kExports, {"one"});
    CHECK(is_told(first, second));
  }
}

}  // namespace
}  // namespace rota::test
