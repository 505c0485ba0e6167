// Memory that may be accessed without any CUDA call: once this is detected, it stays, or comes back.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/unit/runtime/monitor/mapping_driver.h"
#include "tests/unit/runtime/monitor/turning_program.h"

using namespace rota;
using namespace rota::test;

namespace {

constexpr std::uint64_t kBytes = 64 * kMega;

// A mapped file with such a name, in place of a device, which a test cannot open.
struct Found {
  Found() {
    char folder[] = "/tmp/rota-reached-test.XXXXXX";
    REQUIRE(mkdtemp(folder) != nullptr);
    path = folder;
    std::ofstream(path / "libnvoptix.so.1") << "something";
    const int file = open((path / "libnvoptix.so.1").c_str(), O_RDONLY | O_CLOEXEC);
    mapped = mmap(nullptr, 1, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    REQUIRE(mapped != MAP_FAILED);
  }
  ~Found() {
    munmap(mapped, 1);
    std::filesystem::remove_all(path);
  }
  std::filesystem::path path;
  void* mapped = nullptr;
};

}  // namespace

TEST_CASE("evicted memory is restored, for good, once it may be reached without any call") {
  struct Swapping : Rotad {
    Swapping() { keep_limits(); }
  } rotad;
  Program program(memory::Choice::kSwap, true, maps);
  memory::SwapBackend& swap = program.memory.swap();
  api::CUdeviceptr address = 0;
  REQUIRE(swap.serves(0));
  // Without a turn.
  REQUIRE(swap.allocate({program.context, 0}, &address, kBytes) == api::CUDA_SUCCESS);
  REQUIRE(swap.out_bytes(0) == kBytes);
  REQUIRE(eventually([&] { return !swap.pinned(); }));
  const Found found;
  // No thread waits at the gate.
  while (rotad.next().kind != Kind::kWant) {
  }
  CHECK(program.gate.standing() == 0);
  CHECK(swap.pinned());
  rotad.grant(1, 1, 1024 * kMega);
  CHECK(eventually([&] { return swap.all_in_place() && !program.gate.closed(); }));
  CHECK(swap.resident_bytes(0) == kBytes);
}
