// Room, as clients ask a real rotad for it: the promise is in the lease page, and old clients count as they always
// have.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>

#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

constexpr std::uint64_t kMega = 1 << 20;

// GPUs of 1 GiB, contexts of 1 MiB.
struct Asker : Client {
  explicit Asker(const Daemon& daemon, std::uint64_t mega) : Client(daemon.socket(), "asker", protocol::kVersion) {
    REQUIRE_FALSE(add_gpu(1, &gpu));
    use(gpu, mega * kMega);
    want(std::uint64_t{1} << gpu);
  }
  bool is_promised(std::uint64_t mega) const {
    return wait_for([&](const protocol::LeasePage& page) { return page.promised_bytes[gpu] >= mega * kMega; });
  }
  std::uint32_t gpu = 0;
};

TEST_CASE("a grant's lease page promises what its client said that it uses, and more as it asks and it fits") {
  const Daemon daemon;
  const Asker first(daemon, 400);
  REQUIRE(first.wait_for_grant());
  CHECK(first.lease->promised_bytes[first.gpu] == 400 * kMega);
  Asker second(daemon, 300);
  REQUIRE(second.wait_for_grant());
  second.ask(second.gpu, 500 * kMega);
  CHECK(second.is_promised(500));
}

TEST_CASE("everybody's page says what the contexts of all take of a GPU, as they come and go") {
  const Daemon daemon;
  const Asker first(daemon, 100);
  CHECK(first.lease->all_context_bytes[first.gpu] == kMega);
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const Client second(daemon.socket(), "second", protocol::kVersion);
    std::uint32_t gpu = 0;
    const bool right =
        !const_cast<Client&>(second).add_gpu(1, &gpu) && second.lease->all_context_bytes[gpu] == 2 * kMega;
    const char answer = right ? 'y' : 'n';
    if (write(ready[1], &answer, 1) == 1) pause();
    _exit(0);
  }
  char answer = 0;
  CHECK(read(ready[0], &answer, 1) == 1);
  CHECK(answer == 'y');
  CHECK(first.lease->all_context_bytes[first.gpu] == 2 * kMega);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(eventually([&] { return first.lease->all_context_bytes[first.gpu] == kMega; }));
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE("who asks for more than is free is promised it once the other has given back, and status says who waits") {
  const Daemon daemon;
  Asker first(daemon, 400);
  Asker second(daemon, 400);
  REQUIRE(first.wait_for_grant());
  REQUIRE(second.wait_for_grant());
  second.ask(second.gpu, 700 * kMega);
  REQUIRE(first.wait_for([](const protocol::LeasePage& page) { return page.waiters != 0; }));
  CHECK(second.lease->promised_bytes[second.gpu] == 400 * kMega);
  CHECK(second.lease->waiters == 0);
  for (const protocol::StatusClient& client : status(daemon.socket()).clients) {
    CHECK(client.promised_bytes == 400 * kMega);
    CHECK(client.asked_bytes == (client.client == second.number ? 700 * kMega : 0));
  }
  first.give_back(first.lease->grant);
  CHECK(second.is_promised(700));
  CHECK(first.wait_for([&](const protocol::LeasePage& page) { return page.promised_bytes[first.gpu] == 0; }));
}

TEST_CASE("who does not make room within the grace period is overrun, and status says so") {
  const Daemon daemon({"--quantum", "20ms", "--grace", "50ms"});
  Asker first(daemon, 400);
  REQUIRE(first.wait_for_grant());
  Asker second(daemon, 400);
  REQUIRE(second.wait_for_grant());
  second.ask(second.gpu, 700 * kMega);
  CHECK(second.is_promised(700));
  CHECK(first.lease->grant == 0);
  for (const protocol::StatusClient& client : status(daemon.socket()).clients) {
    CHECK((client.overrun != 0) == (client.client == first.number));
  }
}

TEST_CASE("a client of an older version is promised nothing and counts with what it uses") {
  const Daemon daemon;
  Client old(daemon.socket(), "old", 2);
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(old.add_gpu(1, &gpu));
  old.use(gpu, 400 * kMega);
  old.want(std::uint64_t{1} << gpu);
  REQUIRE(old.wait_for_grant());
  CHECK(old.lease->promised_bytes[gpu] == 0);
  const Asker asker(daemon, 400);
  REQUIRE(asker.wait_for_grant());
  old.use(gpu, 700 * kMega);
  // It was granted last, so it has to leave; rotad knows of the older client's growth when it checks.
  CHECK(asker.wait_for([](const protocol::LeasePage& page) { return page.waiters != 0; }));
}

TEST_CASE("an ask about a GPU that is none, or of absurd size, hurts nobody") {
  const Daemon daemon;
  Asker asker(daemon, 100);
  REQUIRE(asker.wait_for_grant());
  asker.ask(99, kMega);
  asker.ask(asker.gpu + 1, kMega);
  asker.ask(asker.gpu, UINT64_MAX);
  CHECK(asker.is_promised(protocol::kMaxGpuBytes / kMega));
  CHECK(serves(daemon));
}

// A client that has had its turn, and rests with all its memory on the GPU.
struct Swapper : Asker {
  Swapper(const Daemon& daemon, std::uint64_t mega) : Asker(daemon, mega) {
    REQUIRE(wait_for_grant());
    resides(mega);
    usage->memory_modes[gpu] = static_cast<std::uint8_t>(protocol::MemoryMode::kSwap);
    give_back(lease->grant);
    REQUIRE(wait_for([](const protocol::LeasePage& page) { return page.grant == 0; }));
  }
  void resides(std::uint64_t mega) const { usage->resident_bytes[gpu] = mega * kMega; }
  bool is_to_clear(std::uint64_t mega, std::uint64_t of) const {
    return wait_for([&](const protocol::LeasePage& page) {
      return page.clear_bytes[gpu] == mega * kMega && page.clear_from_bytes[gpu] == of * kMega;
    });
  }
};

TEST_CASE(
    "who rests with swap memory on the GPU is asked for what the holder lacks, and status says how much is there") {
  const Daemon daemon;
  const Swapper first(daemon, 600);
  const Asker second(daemon, 500);
  REQUIRE(second.wait_for_grant());
  CHECK(first.is_to_clear(600 + 500 + 2 - 1024, 600));
  const StatusRows rows = status(daemon.socket());
  CHECK(rows.clients.at(0).resident_bytes == 600 * kMega);
  CHECK(protocol::memory_mode(rows.clients.at(0), 0) == protocol::MemoryMode::kSwap);
  CHECK(rows.clients.at(1).resident_bytes == 0);
  first.resides(580);
  CHECK(first.is_to_clear(580 + 500 + 2 - 1024, 580));
  first.resides(500);
  CHECK(first.is_to_clear(0, 500));
}

TEST_CASE("what the driver refuses a holder is asked for from others, compared with what they have at that moment") {
  const Daemon daemon;
  const Swapper first(daemon, 300);
  const Asker second(daemon, 400);
  REQUIRE(second.wait_for_grant());
  second.usage->resident_bytes[second.gpu] = 300 * kMega;
  second.usage->free_bytes[second.gpu] = 40 * kMega;
  second.usage->short_bytes[second.gpu] = 60 * kMega;
  CHECK(first.is_to_clear(60, 300));
  second.usage->short_bytes[second.gpu] = 0;
  first.resides(240);
  CHECK(first.is_to_clear(0, 240));
}

TEST_CASE("numbers that a client makes up about its swap memory hurt nobody's pages") {
  const Daemon daemon;
  const Swapper first(daemon, 100);
  first.usage->resident_bytes[first.gpu] = UINT64_MAX;
  first.usage->short_bytes[first.gpu] = UINT64_MAX;
  first.usage->free_bytes[first.gpu] = UINT64_MAX;
  const Asker second(daemon, 500);
  REQUIRE(second.wait_for_grant());
  CHECK(first.is_to_clear(500 + 2, 1024));
  CHECK(second.lease->clear_bytes[second.gpu] == 0);
  CHECK(second.is_promised(500));
}

}  // namespace
}  // namespace rota::test
