// One GPU has one rotad, whatever the owner of the folder does to the lock files in it.
#include <sys/stat.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "scheduler/server/gpu_table.h"
#include "scheduler/server/workers.h"
#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

constexpr const char* kLockOfGpu1 = "/GPU-00000000-0000-0000-0000-000000000001.lock";

protocol::AddGpu named(const Uuid& uuid, const char* name) {
  protocol::AddGpu gpu{};
  gpu.uuid = uuid;
  std::strcpy(gpu.name, name);
  return gpu;
}

TEST_CASE("a GPU whose lock file was unlinked is still its daemon's alone, and a second one is told whose") {
  const Daemon first;
  const Daemon second({"--lock-directory", first.locks()});
  auto owner = std::make_unique<Client>(first.socket());
  REQUIRE_FALSE(owner->add_gpu(1));
  REQUIRE(unlink((first.locks() + kLockOfGpu1).c_str()) == 0);
  Client client(second.socket());
  const auto refused = client.add_gpu(1);
  REQUIRE(refused);
  CHECK(refused->find("pid " + std::to_string(first.pid())) != std::string::npos);
  owner.reset();
  CHECK(eventually([&] { return !client.add_gpu(1); }));
}

TEST_CASE("a lock folder that was renamed and made anew does not give a GPU to a second daemon") {
  const Daemon first;
  Client owner(first.socket());
  REQUIRE_FALSE(owner.add_gpu(1));
  std::filesystem::rename(first.locks(), first.locks() + ".away");
  const Daemon second({"--lock-directory", first.locks()});
  Client client(second.socket());
  CHECK(client.add_gpu(1));
}

TEST_CASE("another daemon may have the same GPU under another lock folder") {
  const Daemon first;
  const Daemon second;
  Client owner(first.socket());
  Client other(second.socket());
  CHECK_FALSE(owner.add_gpu(1));
  CHECK_FALSE(other.add_gpu(1));
}

TEST_CASE(
    "a GPU with an impossible size is refused by itself, with the reason, and its client is served all the same") {
  const std::uint64_t total = GENERATE(std::uint64_t{0}, (std::uint64_t{1} << 48) + 1, ~std::uint64_t{0});
  const Daemon daemon;
  Client client(daemon.socket());
  const auto refused = client.add_gpu(1, nullptr, total);
  REQUIRE(refused);
  CHECK(refused->find(std::to_string(total) + " bytes") != std::string::npos);
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(client.add_gpu(2, &gpu));
  client.want(std::uint64_t{1} << gpu);
  CHECK(client.wait_for_grant());
  CHECK(status(daemon.socket()).gpus.size() == 1);
}

TEST_CASE("users who name GPUs that nothing confirms leave some for others, and what they release is free again") {
  asio::io_context io;
  server::Workers workers(io);
  server::GpuTable table(io, workers, {.folder = "/nowhere/" + std::to_string(getpid()), .files = false}, "rotad",
                         "/nowhere/rotad.sock", false, [](uid_t) {});
  std::uint8_t last = 0;
  std::vector<std::uint32_t> all;
  // Until it is refused; how many it got.
  const auto takes = [&](uid_t user) {
    for (std::uint32_t count = 0;; ++count) {
      const Uuid uuid{{++last, 1}};
      const auto taken = table.take(uuid, std::to_string(user));
      if (!taken) {
        CHECK(taken.error().text.find("of user " + std::to_string(user)) != std::string::npos);
        return count;
      }
      REQUIRE_FALSE(*taken);
      all.push_back(table.add_client(named(uuid, "invented")));
    }
  };
  CHECK(takes(1) == protocol::kMaxGpus / 4);
  CHECK(takes(2) == protocol::kMaxGpus / 4);
  CHECK(takes(3) >= 8);
  CHECK(takes(4) >= 4);
  CHECK(takes(5) >= 2);
  // A GPU that NVML knows counts against nobody's budget.
  table.confirm(all.front(), 1);
  CHECK(takes(1) == 0);  // few are free
  for (const std::uint32_t index : all) table.remove_client(index);
  CHECK(takes(6) == protocol::kMaxGpus / 4);
}

TEST_CASE("a GPU is as large as NVML says, or as most users say, whichever user says something else first") {
  asio::io_context io;
  server::Workers workers(io);
  server::GpuTable table(io, workers, {.folder = "/nowhere/" + std::to_string(getpid()), .files = false}, "rotad",
                         "/nowhere/rotad.sock", false, [](uid_t) {});
  constexpr std::uint64_t kReal = std::uint64_t{80} << 30;
  REQUIRE(table.take(uuid(77), "1"));
  const std::uint32_t gpu = table.add_client(named(uuid(77), "of the test"));
  table.says(gpu, "liar", 1 << 20);
  CHECK(table.bytes(gpu) == 1 << 20);  // nobody knows better
  CHECK_FALSE(table.says(gpu, "honest", kReal));
  CHECK(table.bytes(gpu) == kReal);
  CHECK(table.least_bytes(gpu) == 1 << 20);
  table.says(gpu, "another liar", protocol::kMaxGpuBytes);
  table.says(gpu, "honest, too", kReal);
  CHECK(table.bytes(gpu) == kReal);
  SECTION("what contradicts that is said once, and changes nothing, however often a user repeats it") {
    CHECK(table.says(gpu, "one more liar", 1 << 20));
    for (int i = 0; i < 3; ++i) CHECK_FALSE(table.says(gpu, "one more liar", 1 << 20));
    CHECK(table.bytes(gpu) == kReal);
  }
  SECTION("root or rotad's own user is believed before any number of others, and NVML before them") {
    for (int i = 0; i < 9; ++i) table.says(gpu, "user " + std::to_string(i), 1 << 20);
    table.says(gpu, "root", kReal / 2, true);
    CHECK(table.bytes(gpu) == kReal / 2);
    CHECK(table.least_bytes(gpu) == kReal / 2);
    table.says(gpu, "root", kReal, true);  // the first counts
    CHECK(table.bytes(gpu) == kReal / 2);
    table.confirm(gpu, kReal);
    CHECK(table.bytes(gpu) == kReal);
  }
  SECTION("NVML knows better than any number of users") {
    for (int i = 0; i < 9; ++i) table.says(gpu, "user " + std::to_string(i), 1 << 20);
    CHECK(table.bytes(gpu) == 1 << 20);
    table.confirm(gpu, kReal + kReal / 100);  // the driver sets some aside
    CHECK(table.bytes(gpu) == kReal);
  }
  SECTION("NVML knows better than all") {
    table.confirm(gpu, kReal * 2);
    CHECK(table.bytes(gpu) == kReal * 2);
  }
  table.remove_client(gpu);
}

}  // namespace
}  // namespace rota::test
