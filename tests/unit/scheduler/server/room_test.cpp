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
  explicit Asker(const Daemon& daemon, std::uint64_t mega) : Client(daemon.socket(), "asker", false) {
    REQUIRE_FALSE(add_gpu(1, &gpu));
    use(gpu, mega * kMega);
    want(std::uint64_t{1} << gpu);
  }
  bool is_promised(std::uint64_t mega) const {
    return wait_for([&](const protocol::LeasePage& page) { return page.gpus[gpu].promised_bytes >= mega * kMega; });
  }
  std::uint32_t gpu = 0;
};

TEST_CASE("a grant's lease page promises what its client said that it uses, and more as it asks and it fits") {
  const Daemon daemon;
  const Asker first(daemon, 400);
  REQUIRE(first.wait_for_grant());
  CHECK(first.lease->gpus[first.gpu].promised_bytes == 400 * kMega);
  Asker second(daemon, 300);
  REQUIRE(second.wait_for_grant());
  second.ask(second.gpu, 500 * kMega);
  CHECK(second.is_promised(500));
}

TEST_CASE("everybody's page says what the contexts of all take of a GPU, as they come and go") {
  const Daemon daemon;
  const Asker first(daemon, 100);
  CHECK(first.lease->gpus[first.gpu].all_context_bytes == kMega);
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const Client second(daemon.socket(), "second", false);
    std::uint32_t gpu = 0;
    const bool right =
        !const_cast<Client&>(second).add_gpu(1, &gpu) && second.lease->gpus[gpu].all_context_bytes == 2 * kMega;
    const char answer = right ? 'y' : 'n';
    if (write(ready[1], &answer, 1) == 1) pause();
    _exit(0);
  }
  char answer = 0;
  CHECK(read(ready[0], &answer, 1) == 1);
  CHECK(answer == 'y');
  CHECK(first.lease->gpus[first.gpu].all_context_bytes == 2 * kMega);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(eventually([&] { return first.lease->gpus[first.gpu].all_context_bytes == kMega; }));
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE(
    "a client that asks for more than is free is promised it once the other has given back, and status says which one "
    "waits") {
  const Daemon daemon;
  Asker first(daemon, 400);
  Asker second(daemon, 400);
  REQUIRE(first.wait_for_grant());
  REQUIRE(second.wait_for_grant());
  second.ask(second.gpu, 700 * kMega);
  REQUIRE(first.wait_for([](const protocol::LeasePage& page) { return page.gpus[0].waiters != 0; }));
  CHECK(second.lease->gpus[second.gpu].promised_bytes == 400 * kMega);
  CHECK(second.lease->gpus[0].waiters == 0);
  for (const protocol::TaskRow& task : status(daemon.socket()).tasks) {
    CHECK(task.promised_bytes == 400 * kMega);
    CHECK(task.asked_bytes == (task.client == second.number ? 700 * kMega : 0));
  }
  first.give_back(first.lease->gpus[0].grant);
  CHECK(second.is_promised(700));
  CHECK(first.wait_for([&](const protocol::LeasePage& page) { return page.gpus[first.gpu].promised_bytes == 0; }));
}

TEST_CASE("a client that does not evict within the grace period is overrun, and status says so") {
  const Daemon daemon({"--quantum", "20ms", "--grace", "50ms"});
  Asker first(daemon, 400);
  REQUIRE(first.wait_for_grant());
  Asker second(daemon, 400);
  REQUIRE(second.wait_for_grant());
  second.ask(second.gpu, 700 * kMega);
  CHECK(second.is_promised(700));
  CHECK(first.lease->gpus[0].grant == 0);
  for (const protocol::ProgramRow& client : status(daemon.socket()).programs) {
    CHECK((client.overrun != 0) == (client.client == first.number));
  }
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
    usage->gpus[gpu].memory_mode = static_cast<std::uint8_t>(protocol::MemoryMode::kSwap);
    give_back(lease->gpus[0].grant);
    REQUIRE(wait_for([](const protocol::LeasePage& page) { return page.gpus[0].grant == 0; }));
  }
  void resides(std::uint64_t mega) const { usage->gpus[gpu].resident_bytes = mega * kMega; }
  bool is_to_clear(std::uint64_t mega, std::uint64_t of) const {
    return wait_for([&](const protocol::LeasePage& page) {
      return page.gpus[gpu].clear_bytes == mega * kMega && page.gpus[gpu].clear_from_bytes == of * kMega;
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
  const protocol::Snapshot rows = status(daemon.socket());
  CHECK(rows.tasks.at(0).resident_bytes == 600 * kMega);
  CHECK(rows.tasks.at(0).mode == protocol::MemoryMode::kSwap);
  CHECK(rows.tasks.at(1).resident_bytes == 0);
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
  second.usage->gpus[second.gpu].resident_bytes = 300 * kMega;
  second.usage->gpus[second.gpu].free_bytes = 40 * kMega;
  second.usage->gpus[second.gpu].short_bytes = 60 * kMega;
  CHECK(first.is_to_clear(60, 300));
  second.usage->gpus[second.gpu].short_bytes = 0;
  first.resides(240);
  CHECK(first.is_to_clear(0, 240));
}

TEST_CASE("numbers that a client makes up about its swap memory hurt nobody's pages") {
  const Daemon daemon;
  const Swapper first(daemon, 100);
  first.usage->gpus[first.gpu].resident_bytes = UINT64_MAX;
  first.usage->gpus[first.gpu].short_bytes = UINT64_MAX;
  first.usage->gpus[first.gpu].free_bytes = UINT64_MAX;
  const Asker second(daemon, 500);
  REQUIRE(second.wait_for_grant());
  CHECK(first.is_to_clear(500 + 2, 1024));
  CHECK(second.lease->gpus[second.gpu].clear_bytes == 0);
  CHECK(second.is_promised(500));
}

}  // namespace
}  // namespace rota::test
