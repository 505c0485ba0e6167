// Memory that is handed over between clients: which client gets it, and what rotad does not accept from any.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "scheduler/protocol/descriptor.h"
#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

using protocol::Kind;
using protocol::Message;

constexpr std::uint64_t kMega = 1 << 20;

// A client that swaps, on a GPU of 1 GiB with contexts of 1 MiB.
struct Swapping : Client {
  Swapping(const Daemon& daemon, std::uint64_t mega, std::uint64_t resident)
      : Client(daemon.socket(), "swapping", protocol::kVersion) {
    REQUIRE_FALSE(add_gpu(1, &gpu));
    usage->resident_bytes[gpu] = resident * kMega;
    use(gpu, mega * kMega);
    want(std::uint64_t{1} << gpu);
  }
  void hand_over(int memory) const { Client::hand_over(gpu, 128 * kMega, {memory}); }
  // Returns once rotad has read everything sent before.
  void is_heard() { REQUIRE_FALSE(add_gpu(1)); }
  bool is_asked_to_clear() const {
    return wait_for([&](const protocol::LeasePage& page) { return page.clear_bytes[gpu] != 0; });
  }
  bool may_hand_over() const { return lease->hand_over_gpus == std::uint64_t{1} << gpu; }
  std::uint32_t gpu = 0;
};

// A client that has rested with all of its memory on the GPU.
struct Giver : Swapping {
  explicit Giver(const Daemon& daemon) : Swapping(daemon, 700, 700) {
    REQUIRE(wait_for_grant());
    want(0);
    give_back(lease->grant);
    REQUIRE(wait_for([](const protocol::LeasePage& page) { return page.grant == 0; }));
  }
};
// A client that has just been granted the GPU and has next to nothing there.
struct Taker : Swapping {
  explicit Taker(const Daemon& daemon) : Swapping(daemon, 700, 2) { REQUIRE(wait_for_grant()); }
};

Descriptor make_memory() {
  return Descriptor(memfd_create("memory", MFD_CLOEXEC));
}

ino_t identity(int descriptor) {
  struct stat file{};
  REQUIRE(fstat(descriptor, &file) == 0);
  return file.st_ino;
}

std::uint64_t handed_over(const Daemon& daemon) {
  return status(daemon.socket()).gpus.at(0).handed_over_bytes;
}

TEST_CASE("memory that one client clears goes to the one that lacks it, and status counts it") {
  const Daemon daemon;
  Giver giver(daemon);
  const Taker taker(daemon);
  REQUIRE(giver.is_asked_to_clear());
  CHECK(giver.may_hand_over());
  const Descriptor memory = make_memory();
  giver.hand_over(memory.get());
  Descriptor came;
  const auto extent = receive(taker.descriptor, {&came, 1});
  REQUIRE(extent);
  CHECK(extent->kind == Kind::kExtent);
  CHECK(extent->body.extent.gpu == taker.gpu);
  CHECK(extent->body.extent.bytes == 128 * kMega);
  REQUIRE(came);
  CHECK(identity(came.get()) == identity(memory.get()));
  CHECK(handed_over(daemon) == 128 * kMega);
}

TEST_CASE("memory for which there is no taker is closed") {
  const Daemon daemon;
  Giver giver(daemon);
  const Descriptor memory = make_memory();
  giver.hand_over(memory.get());
  giver.is_heard();
  CHECK(handed_over(daemon) == 0);
}

TEST_CASE("with --trust none nothing is handed over") {
  const Daemon daemon({"--trust", "none"});
  Giver giver(daemon);
  Taker taker(daemon);
  REQUIRE(giver.is_asked_to_clear());
  CHECK_FALSE(giver.may_hand_over());
  const Descriptor memory = make_memory();
  giver.hand_over(memory.get());
  giver.is_heard();
  taker.is_heard();  // the next message that it receives is the answer to this
  CHECK(handed_over(daemon) == 0);
}

TEST_CASE("a descriptor of something else is taken from nobody, nor any of the same user's again") {
  const Daemon daemon;
  Giver giver(daemon);
  Taker taker(daemon);
  REQUIRE(giver.is_asked_to_clear());
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  giver.hand_over(ends[1]);
  close(ends[1]);
  giver.is_heard();
  char byte = 0;
  CHECK(read(ends[0], &byte, 1) == 0);  // the pipe's last writer was rotad's descriptor
  close(ends[0]);
  const Descriptor memory = make_memory();
  giver.hand_over(memory.get());
  giver.is_heard();
  taker.is_heard();
  CHECK(handed_over(daemon) == 0);
  CHECK(serves(daemon));
}

TEST_CASE("of several descriptors beside one message rotad keeps none") {
  const Daemon daemon;
  Giver giver(daemon);
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const Descriptor memory = make_memory();
  static_cast<const Client&>(giver).hand_over(giver.gpu, 128 * kMega, {memory.get(), ends[1]});
  close(ends[1]);
  giver.is_heard();
  REQUIRE(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
  char byte = 0;
  CHECK(read(ends[0], &byte, 1) == 0);  // the pipe has no writer left
  close(ends[0]);
}

// A child process that lacks memory, in its own user namespace if `elsewhere` is set. It has a pipe for what it
// reports, and one whose end it waits for.
struct TakerProcess {
  TakerProcess(const Daemon& daemon, bool elsewhere) {
    int said[2];
    int asked[2];
    REQUIRE(pipe2(said, O_CLOEXEC) == 0);
    REQUIRE(pipe2(asked, O_CLOEXEC) == 0);
    child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      close(asked[1]);
      char verdict = elsewhere && unshare(CLONE_NEWUSER) != 0 ? 'n' : 'y';
      if (verdict == 'n') {
        _exit(write(said[1], &verdict, 1) == 1 ? 0 : 1);
      }
      Client taker(daemon.socket(), "taker", protocol::kVersion);
      _exit(serve(taker, said[1], asked[0]) ? 0 : 1);
    }
    close(said[1]);
    close(asked[0]);
    end = Descriptor(asked[1]);
    char verdict = 0;
    possible = read(said[0], &verdict, 1) == 1 && verdict == 'y';
    close(said[0]);
  }
  ~TakerProcess() {
    end = Descriptor();
    int status = 0;
    waitpid(child, &status, 0);
  }
  static bool serve(Client& taker, int said, int asked) {
    std::uint32_t gpu = 0;
    if (taker.add_gpu(1, &gpu)) return false;
    taker.usage->resident_bytes[gpu] = 2 * kMega;
    taker.use(gpu, 700 * kMega);
    taker.want(std::uint64_t{1} << gpu);
    if (!taker.wait_for_grant()) return false;
    const char verdict = 'y';
    char ignored = 0;
    return write(said, &verdict, 1) == 1 && read(asked, &ignored, 1) == 0;
  }
  pid_t child = -1;
  Descriptor end;
  bool possible = false;
};

TEST_CASE("memory is handed over within one user namespace, and never into another") {
  const Daemon daemon;
  const Giver giver(daemon);
  SECTION("another process of the same user") {
    const TakerProcess taker(daemon, false);
    REQUIRE(taker.possible);
    REQUIRE(giver.is_asked_to_clear());
    CHECK(giver.may_hand_over());
  }
  SECTION("in a user namespace of its own") {
    const TakerProcess taker(daemon, true);
    if (!taker.possible) {
      WARN("left out: this machine allows no user namespaces");
      return;
    }
    REQUIRE(giver.is_asked_to_clear());
    CHECK_FALSE(giver.may_hand_over());
  }
}

}  // namespace
}  // namespace rota::test
