// Requests for extents, and for contexts, that wait for memory of others.
#include <catch2/catch.hpp>
#include <string>

#include "tests/unit/scheduler/limits/limits_beside_books.h"
#include "tests/unit/scheduler/limits/room_machine.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;
using What = protocol::AwaitRoom::What;
using room::Machine;

void await_extents(Machine& machine, ClientId client, Bytes bytes) {
  machine.queue.await({.client = client,
                       .gpu = 0,
                       .number = ++machine.number,
                       .bytes = bytes,
                       .since = machine.now,
                       .tried = machine.now,
                       .most = 100,
                       .what = What::kSwapped});
  machine.blocks(client, true);
}

TEST_CASE("extents have to fit with all extents of their program, and wait only for what stays") {
  Machine machine;
  machine.queue.moves(2, 0, 40, machine.now);
  machine.queue.moves(3, 0, 90, machine.now);
  await_extents(machine, 2, 20);
  CHECK(machine.settle() == "2 refused");
  machine.has(1, 60);
  await_extents(machine, 2, 61);
  CHECK(machine.settle() == "2 refused");
  await_extents(machine, 2, 60);
  CHECK(machine.settle().empty());
  CHECK(machine.settle(1ms).empty());
  machine.queue.leave(1, machine.now);
  CHECK(machine.settle() == "2 again");
}

TEST_CASE("in a deadlock no program is refused whose memory obstructs no other, however young") {
  Machine machine;
  machine.has(1, 50);
  machine.has(2, 40);
  machine.queue.moves(3, 0, 30, machine.now);
  machine.await(1, 20);
  machine.await(2, 20);
  await_extents(machine, 3, 10);
  for (ClientId id = 1; id <= 3; ++id) machine.blocks(id, true, room::kBegin + id * 1s);
  CHECK(machine.settle() == "2 refused");
}

struct SwapRig {
  static constexpr Bytes kGpu = 6400;
  static constexpr Bytes kContext = 50;
  LimitsBesideBooks quota;
  Time now = 1000s;
  std::uint32_t number = 0;

  SwapRig() {
    for (const ClientId id : {1, 2, 3}) {
      quota.join(id, {});
      quota.add_gpu(id, 0, kGpu, kContext);
    }
  }
  // The client has this much in extents.
  void has(ClientId id, Bytes swapped) {
    const auto outcome = quota.reserve(id, 0, ++number, {swapped, swapped, 0, swapped}, now);
    REQUIRE(outcome.answers.size() == 1);
    REQUIRE(outcome.answers[0].granted);
  }
  void pins(ClientId id, Bytes stays) {
    quota.pin(id, 0, protocol::kMaxGpuBytes, now);
    quota.stays(id, 0, {.bytes = stays, .blocks = false, .began = {}}, now);
  }
  // What is answered to a request that was refused: "" for nothing yet.
  std::string asks(ClientId id, Bytes bytes, What what) {
    return text(quota.await_room(
        {.client = id, .gpu = 0, .number = 1, .bytes = bytes, .since = now, .tried = now, .what = what}, now));
  }
  static std::string text(const Quota::Outcome& outcome) {
    std::string all;
    for (const RoomQueue::Answer& each : outcome.rooms) {
      all += std::to_string(each.client) + (each.again ? " again" : " refused");
    }
    return all;
  }
};

TEST_CASE("extents wait until a program ends that has pinned all of its memory") {
  SwapRig limits;
  limits.has(1, 4000);
  limits.pins(1, 4000);
  SECTION("also those of one that pins its own") {
    limits.pins(2, 0);
  }
  SECTION("and those of one that does not") {
    limits.has(2, 100);
  }
  CHECK(limits.asks(2, 4000, What::kSwapped).empty());
  limits.now += 1ms;
  CHECK(SwapRig::text(limits.quota.leave(1, limits.now)) == "2 again");
}

TEST_CASE("extents that no longer fit next to a program's own are refused at once") {
  SwapRig limits;
  limits.has(1, 1000);
  limits.pins(1, 1000);
  limits.has(2, 4000);
  const Bytes most = SwapRig::kGpu - SwapRig::kContext - limits.quota.reserved(2, 0).swapped;
  CHECK(limits.asks(2, most + 1, What::kSwapped) == "2 refused");
  CHECK(limits.asks(2, most, What::kSwapped).empty());
}

TEST_CASE(
    "where nothing of others stays extents are refused at once, unless they would stay next to what others restore") {
  SwapRig limits;
  limits.has(1, 4000);
  CHECK(limits.asks(2, 6300, What::kSwapped) == "2 refused");
  limits.pins(2, 0);
  CHECK(limits.asks(2, 3000, What::kSwapped).empty());
  limits.now += 1ms;
  CHECK(SwapRig::text(limits.quota.leave(1, limits.now)) == "2 again");
}

TEST_CASE("a context waits for what stays, and for nothing else") {
  SwapRig limits;
  limits.has(1, 6000);
  CHECK(limits.asks(2, SwapRig::kContext, What::kContext) == "2 refused");
  limits.pins(1, 6000);
  CHECK(limits.asks(2, SwapRig::kContext, What::kContext).empty());
  limits.now += 1ms;
  CHECK(SwapRig::text(limits.quota.leave(1, limits.now)) == "2 again");
}

}  // namespace
}  // namespace rota::scheduler
