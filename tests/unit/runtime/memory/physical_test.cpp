// Physical memory: whose handles and mappings keep it charged.
#include "runtime/memory/physical.h"

#include <catch2/catch.hpp>

#include "tests/unit/runtime/memory/memory_fixture.h"

using namespace rota;
using namespace rota::memory;
using rota::test::kMiB;

namespace {

struct Pieces {
  Ledger ledger;
  Physical physical{ledger};

  void create(std::uint64_t handle, int device, std::uint64_t bytes) {
    REQUIRE(ledger.reserve(device, bytes, Kind::kPhysical));
    physical.created(handle, device, bytes);
  }
  // The GPU on which bytes were freed.
  int release(std::uint64_t handle, api::CUresult answer = api::CUDA_SUCCESS) {
    int freed = 0;
    CHECK(physical.release(handle, [&] { return answer; }, &freed) == answer);
    return freed;
  }
  std::vector<int> unmap(std::uint64_t address, std::uint64_t bytes, api::CUresult answer = api::CUDA_SUCCESS) {
    std::vector<int> freed;
    CHECK(physical.unmap(address, bytes, [&] { return answer; }, &freed) == answer);
    return freed;
  }
};

}  // namespace

TEST_CASE("physical memory is charged until its last handle and its last mapping are gone") {
  Pieces p;
  p.create(1, 0, 2 * kMiB);
  p.physical.mapped(0x100000, 2 * kMiB, 1);
  CHECK(p.release(1) == kNobody);  // still mapped
  // The number is reused while the old memory exists.
  p.create(1, 1, 4 * kMiB);
  CHECK(p.unmap(0x100000, 2 * kMiB) == std::vector<int>{0});
  CHECK(p.ledger.live_bytes(0) == 0);
  CHECK(p.ledger.live_bytes(1) == 4 * kMiB);
  CHECK(p.release(1) == 1);
  CHECK(p.ledger.live_bytes(1) == 0);
  CHECK(p.release(99) == kNobody);  // not ours
}

TEST_CASE("a handle that was got back from an address holds its memory once more") {
  Pieces p;
  p.create(7, 0, kMiB);
  p.physical.mapped(0x900000, kMiB, 7);
  CHECK(p.release(7) == kNobody);
  p.physical.retained(7, 0x900000 + kMiB / 2);
  CHECK(p.unmap(0x900000, kMiB).empty());
  CHECK(p.ledger.live_bytes(0) == kMiB);
  CHECK(p.release(7) == 0);
  CHECK(p.ledger.live_bytes(0) == 0);
}

TEST_CASE("a handle retained for an address outside every mapping belongs to none of our pieces") {
  Pieces p;
  p.create(7, 0, kMiB);
  p.physical.mapped(0x900000, kMiB, 7);
  // Beyond the mapping's end, where another library has mapped its own memory; and before its beginning.
  p.physical.retained(8, 0x900000 + kMiB);
  p.physical.retained(9, 0x8ff000);
  CHECK(p.unmap(0x900000, kMiB).empty());
  CHECK(p.release(7) == 0);
  CHECK(p.ledger.live_bytes(0) == 0);
  CHECK(p.release(8) == kNobody);
  CHECK(p.release(9) == kNobody);
}

TEST_CASE("a handle's number that the driver gives again ends what we thought was there") {
  Pieces p;
  p.create(5, 0, 2 * kMiB);
  p.create(5, 0, 3 * kMiB);
  CHECK(p.ledger.live_bytes(0) == 3 * kMiB);
  // But not what is still mapped.
  p.physical.mapped(0x100000, 3 * kMiB, 5);
  p.create(5, 0, kMiB);
  CHECK(p.ledger.live_bytes(0) == 4 * kMiB);
  CHECK(p.unmap(0x100000, 3 * kMiB) == std::vector<int>{0});
  CHECK(p.ledger.live_bytes(0) == kMiB);
}

TEST_CASE("what the driver refuses to release or to unmap stays as it was") {
  Pieces p;
  p.create(3, 0, kMiB);
  p.physical.mapped(0x100000, kMiB, 3);
  CHECK(p.release(3, api::CUDA_ERROR_INVALID_VALUE) == kNobody);
  CHECK(p.unmap(0x100000, kMiB, api::CUDA_ERROR_INVALID_VALUE).empty());
  CHECK(p.ledger.find(0x100000 + 5));
  CHECK(p.unmap(0x100000, kMiB).empty());  // the handle is still there
  CHECK(p.ledger.live_bytes(0) == kMiB);
  CHECK(p.release(3) == 0);
}

TEST_CASE("memory of another process is charged to nobody here") {
  Pieces p;
  p.physical.imported(4);
  p.physical.mapped(0x100000, kMiB, 4);
  CHECK(p.ledger.find(0x100000)->device == kNobody);
  CHECK(p.release(4) == kNobody);
  CHECK(p.unmap(0x100000, kMiB).empty());
  CHECK(p.ledger.entries() == 0);
  // The process's own memory, opened again, under the handle that it has.
  p.create(6, 0, kMiB);
  p.physical.imported(6);
  CHECK(p.release(6) == kNobody);
  CHECK(p.release(6) == 0);
}
