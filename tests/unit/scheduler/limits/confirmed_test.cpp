// What a client says of itself costs others no memory: an account refuses only its own members, and for all others only
// what is confirmed counts.
#include <catch2/catch.hpp>

#include "scheduler/limits/quota.h"
#include "tests/unit/scheduler/limits/limits_beside_books.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;

constexpr Bytes kGpu = 6400;  // so that a step is 100
constexpr Bytes kContext = 50;
constexpr Time kNow = 1s;

Quota::Membership host(Bytes bytes) {
  return {.key = "host", .name = "the host", .limits = {.host = bytes}, .remedy = {}, .shared = true};
}

// A client that lies, and another one that asks. Neither answers when it is asked to report.
struct Rig {
  explicit Rig(Bytes host_bytes = 10'000) {
    for (const ClientId id : {liar, honest}) {
      quota.join(id, {host(host_bytes)});
      quota.add_gpu(id, 0, kGpu, kContext);
    }
  }
  void says(Reservation has) { quota.state(liar, 0, has, answered, 0, kNow); }
  Quota::Answer ask(ClientId id, Reservation wanted) {
    Quota::Outcome outcome = quota.reserve(id, 0, ++number, wanted, kNow);
    if (outcome.answers.empty()) outcome = quota.tick(kNow + Quota::kPatience);
    REQUIRE(outcome.answers.size() == 1);
    if (id == liar) answered = number;
    return outcome.answers[0];
  }
  bool granted(Reservation wanted) { return ask(honest, wanted).granted; }
  static constexpr ClientId liar = 1;
  static constexpr ClientId honest = 2;
  static constexpr Bytes all = kGpu - 2 * kContext;
  LimitsBesideBooks quota;
  std::uint32_t number = 0;
  std::uint32_t answered = 0;
};

}  // namespace

TEST_CASE("a claim to have all of a GPU, of whatever kind, keeps no memory from another client") {
  const auto claim = GENERATE(Reservation{kGpu, 0, kGpu, 0}, Reservation{kGpu, kGpu, 0, kGpu},
                              Reservation{protocol::kMaxGpuBytes, protocol::kMaxGpuBytes, 0, 0});
  Rig rig;
  rig.says(claim);
  CHECK(rig.quota.reserved(rig.liar, 0).device >= kGpu);
  CHECK(rig.quota.fixed_of_others(rig.honest, 0) == 0);
  SECTION("another has all of it as swap memory") {
    CHECK(rig.granted({Rig::all, Rig::all, 0, Rig::all}));
  }
  SECTION("another has all of it as memory that stays") {
    CHECK(rig.granted({Rig::all, 0, Rig::all, 0}));
  }
  SECTION("another has all of it and what the host can hold") {
    CHECK(rig.granted({Rig::all + 10'000, Rig::all + 10'000, 0, 0}));
  }
}

TEST_CASE("an account has no say about clients that are not its own, whatever its limit") {
  Rig rig;
  rig.quota.join(rig.liar, {{"session 1", "session of the liar", {.device = 0, .host = 0}}});
  rig.says({kGpu, kGpu, 0, 0});
  CHECK(rig.granted({Rig::all, Rig::all, 0, Rig::all}));
  const Quota::Answer refused = rig.ask(rig.liar, {kGpu + 4, kGpu + 4, 0, 0});
  CHECK_FALSE(refused.granted);
  CHECK_THAT(refused.why, Contains("session of the liar may have 0 bytes"));
}

TEST_CASE("swap memory is within the limit on GPU memory as well, but for the extent in which it moves") {
  LimitsBesideBooks quota;
  constexpr Bytes kMega = 1 << 20;
  quota.join(1, {{"user 7", "user 7", {.device = 200 * kMega}}});
  quota.add_gpu(1, 0, 8192 * kMega, 0);
  CHECK(quota.reserve(1, 0, 1, {0, 0, 0, 300 * kMega}, kNow).answers.at(0).granted);
  const Quota::Answer refused = quota.reserve(1, 0, 2, {0, 0, 0, 400 * kMega}, kNow + 1s).answers.at(0);
  CHECK_FALSE(refused.granted);
  CHECK_THAT(refused.why, Contains("user 7 may have 200 MiB on each GPU"));
}

TEST_CASE("who belongs to the same account of its own has less by what another of its clients says") {
  Rig rig;
  const Quota::Membership user{"user 7", "user 7", {.device = 1000}};
  for (const ClientId id : {rig.liar, rig.honest}) rig.quota.join(id, {user});
  rig.says({900, 900, 0, 0});
  CHECK(rig.granted({100, 0, 100, 0}));
  CHECK_FALSE(rig.granted({101, 0, 101, 0}));
}

TEST_CASE("what a client has been granted counts for others, until it says that it has less") {
  Rig rig;
  REQUIRE(rig.ask(rig.liar, {1000, 0, 1000, 0}).granted);
  CHECK_FALSE(rig.granted({Rig::all, Rig::all, 0, Rig::all}));
  rig.says({4000, 0, 4000, 0});
  CHECK(rig.granted({Rig::all - 1100, Rig::all - 1100, 0, Rig::all - 1100}));
  rig.says({0, 0, 0, 0});
  CHECK(rig.granted({Rig::all, Rig::all, 0, Rig::all}));
}

TEST_CASE("what a client only says it has is not granted to it along with something else") {
  Rig rig;
  rig.says({kGpu, 0, kGpu, 0});
  REQUIRE(rig.ask(rig.liar, {100, 0, 100, 0}).granted);
  CHECK(rig.quota.fixed_of_others(rig.honest, 0) <= 200);
  CHECK(rig.granted({Rig::all - 200, Rig::all - 200, 0, Rig::all - 200}));
  CHECK_FALSE(rig.ask(rig.liar, {kGpu, 0, kGpu, 0}).granted);
}

TEST_CASE("a client is granted no more than its limits by saying first that it has it already") {
  Rig rig;
  rig.quota.join(rig.liar, {{"user 7", "user 7", {.device = 1000, .host = 500}}});
  SECTION("as memory that stays") {
    rig.says({3000, 0, 3000, 0});
    const Quota::Answer refused = rig.ask(rig.liar, {3000, 0, 3000, 0});
    CHECK_FALSE(refused.granted);
    CHECK_THAT(refused.why, Contains("user 7 may have 1000 bytes on each GPU"));
  }
  SECTION("as memory that moves as a whole") {
    constexpr Bytes kMega = 1 << 20;
    rig.quota.set_total(0, 8192 * kMega, kNow);
    rig.quota.state(rig.liar, 0, {0, 0, 0, 300 * kMega}, 0, 0, kNow);
    CHECK_FALSE(rig.ask(rig.liar, {0, 0, 0, 300 * kMega}).granted);
  }
  SECTION("as memory that may have to lie on the host") {
    rig.quota.set_limits("user 7", {.host = 500});
    REQUIRE(rig.granted({Rig::all, 0, Rig::all, 0}));
    rig.says({3000, 3000, 0, 0});
    const Quota::Answer refused = rig.ask(rig.liar, {3000, 3000, 0, 0});
    CHECK_FALSE(refused.granted);
    CHECK_THAT(refused.why, Contains("user 7 may have 500 bytes of GPU memory in host memory"));
  }
  CHECK(rig.quota.fixed_of_others(rig.honest, 0) == 0);
  SECTION("and has what it says within them") {
    rig.says({400, 0, 400, 0});
    CHECK(rig.ask(rig.liar, {400, 0, 400, 0}).granted);
    CHECK(rig.quota.fixed_of_others(rig.honest, 0) >= 400);
  }
}

TEST_CASE("what the driver and the kernel confirm counts for others, and no more of it than is said") {
  Rig rig;
  rig.says({kGpu, 0, 1000, 0});
  rig.quota.confirm(rig.liar, 0, 600, 300, kNow);
  CHECK(rig.quota.fixed_of_others(rig.honest, 0) == 600);
  rig.quota.confirm(rig.liar, 0, 5000, 0, kNow);
  CHECK(rig.quota.fixed_of_others(rig.honest, 0) == 1000);
  CHECK_FALSE(rig.granted({Rig::all, Rig::all, 0, Rig::all}));
  SECTION("it is gone when that is no longer so") {
    rig.quota.confirm(rig.liar, 0, 0, 0, kNow);
    CHECK(rig.granted({Rig::all, Rig::all, 0, Rig::all}));
  }
  SECTION("it ends with the client") {
    rig.quota.leave(rig.liar, kNow);
    CHECK(rig.granted({Rig::all, Rig::all, 0, Rig::all}));
  }
}

TEST_CASE("swap memory may be on the GPU or on the host, and either confirms it") {
  Rig rig;
  rig.says({3000, 3000, 0, 3000});
  rig.quota.confirm(rig.liar, 0, 1000, 2000, kNow);
  CHECK_FALSE(rig.granted({Rig::all - 3000 + 1, 0, Rig::all - 3000 + 1, 0}));
  CHECK(rig.granted({Rig::all - 3000, 0, Rig::all - 3000, 0}));
}

TEST_CASE("clients of an earlier daemon are believed for as long as they are expected, and a claim after that is not") {
  Rig rig;
  rig.quota.hold_until(kNow + 3s);
  rig.says({4000, 0, 4000, 0});
  CHECK(rig.quota.fixed_of_others(rig.honest, 0) == 4000);
  rig.quota.tick(kNow + 3s);
  rig.quota.state(rig.liar, 0, {kGpu, 0, kGpu, 0}, 0, 0, kNow + 4s);
  CHECK(rig.quota.fixed_of_others(rig.honest, 0) == 4000);
}

}  // namespace rota::scheduler
