// What NVML's stand-in asks the core: the part that needs no process of its own (tests/integration/nvml_test.py has
// those).
#include <catch2/catch.hpp>

#include "runtime/core/gpu_memory.h"

namespace rota::interpose {
namespace {

TEST_CASE("a GPU's UUID is read as NVML writes it, and nothing else is") {
  const auto uuid = parse_gpu_uuid("GPU-6ba7b810-9dad-11d1-80b4-00c04fd430C8");
  REQUIRE(uuid);
  CHECK(*uuid == std::array<unsigned char, 16>{0x6b, 0xa7, 0xb8, 0x10, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0,
                                               0x4f, 0xd4, 0x30, 0xc8});
  for (const char* other :
       {"", "GPU-", "MIG-6ba7b810-9dad-11d1-80b4-00c04fd430c8", "GPU-6ba7b810-9dad-11d1-80b4-00c04fd430c",
        "GPU-6ba7b810-9dad-11d1-80b4-00c04fd430c88", "GPU-6ba7b810-9dad-11d1-80b4-00c04fd430g8",
        "GPU-6ba7b81009dad-11d1-80b4-00c04fd430c8", "MIG-GPU-6ba7b810-9dad-11d1-80b4-00c04fd430c8/1/0"}) {
    CHECK_FALSE(parse_gpu_uuid(other));
  }
  CHECK_FALSE(parse_gpu_uuid(nullptr));
}

TEST_CASE("a question of another version, or about no GPU, changes nothing") {
  RotaGpuMemory gpu{1000, 900, 7};
  CHECK(gpu_memory(kRotaGpuMemoryVersion + 1, "GPU-6ba7b810-9dad-11d1-80b4-00c04fd430c8", &gpu) == 0);
  CHECK(gpu_memory(kRotaGpuMemoryVersion, "nothing", &gpu) == 0);
  CHECK(gpu_memory(kRotaGpuMemoryVersion, "GPU-6ba7b810-9dad-11d1-80b4-00c04fd430c8", nullptr) == 0);
  CHECK(gpu_memory(kRotaGpuMemoryVersion, nullptr, nullptr) == 0);  // no limit is set for the unit tests
  CHECK((gpu.total == 1000 && gpu.free == 900 && gpu.own == 7));
}

}  // namespace
}  // namespace rota::interpose
