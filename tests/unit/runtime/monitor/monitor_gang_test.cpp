// A program whose task is a member of a gang, with a rotad played by the test.
#include <catch2/catch.hpp>
#include <chrono>

#include "tests/unit/runtime/monitor/turning_program.h"

using namespace rota;
using namespace std::chrono_literals;
using protocol::kGangRests;
using protocol::kGangStands;
using protocol::Kind;
using test::eventually;

namespace {

constexpr std::uint32_t kGrant = 5;
constexpr std::uint32_t kGang = 3;

bool tells(test::Rotad& rotad, std::uint32_t step, std::uint32_t flags) {
  const std::uint64_t word = std::uint64_t{step} << 32 | flags;
  return eventually([&] { return rotad.usage().gpus[0].gang_rest.load() == word; });
}

}  // namespace

TEST_CASE("a member of a gang says when it rests, makes single calls, and gives back at the end") {
  test::Rotad rotad;
  test::Program program;
  rotad.gang(kGang);
  program.hold(rotad, kGrant, protocol::kMaxGpuBytes);
  rotad.somebody_waits(1, 1);  // the turn has been over for long
  CHECK(tells(rotad, 0, protocol::kGangMayEnd));
  CHECK_FALSE(program.gate.closed());
  rotad.gang(kGang, 1);
  CHECK(tells(rotad, 1, kGangRests));
  CHECK(program.gate.closed());
  // rotad is told at once, not only at the next check.
  const auto begun = std::chrono::steady_clock::now();
  for (std::uint32_t step = 2; step <= 20; ++step) {
    rotad.gang(kGang, step);
    CHECK(tells(rotad, step, kGangRests));
    CHECK(rotad.FakeRotad::next().kind == Kind::kUsage);
  }
  CHECK(std::chrono::steady_clock::now() - begun < 2s);
  // It is not idle when a call waits that a kernel of another member may need.
  program.launch();
  CHECK(tells(rotad, 20, kGangRests | kGangStands));
  const std::uint64_t before = program.gate.traffic().calls;
  rotad.gang(kGang, 21);
  program.launcher.join();
  CHECK(tells(rotad, 21, kGangRests));
  CHECK(program.gate.traffic().calls == before + 1);
  CHECK(program.gate.closed());
  rotad.gang(kGang, 21, kGrant);
  const protocol::Message back = rotad.next();
  CHECK(back.kind == Kind::kGiveBack);
  CHECK(back.body.give_back.grant == kGrant);
  CHECK(back.body.give_back.task == 1);
  CHECK(program.gate.closed());
}

TEST_CASE("a member of a gang that has asked for nothing uses its grant when it needs it") {
  test::Rotad rotad;
  test::Program program;
  REQUIRE(eventually([&] { return program.monitor.served(); }));
  rotad.gang(kGang);
  rotad.grant(kGrant, 1, protocol::kMaxGpuBytes);
  CHECK(tells(rotad, 0, kGangRests | protocol::kGangMayEnd));
  program.launch();
  program.launcher.join();
  CHECK(tells(rotad, 0, 0));
  CHECK_FALSE(program.gate.closed());
  while (!rotad.quiet()) CHECK(rotad.FakeRotad::next().kind == Kind::kUsage);  // it neither asks nor gives back
}
