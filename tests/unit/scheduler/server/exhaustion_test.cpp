// Allocations that fail inside rotad's event loop, one after the other. A separate program, since it replaces operator
// new.
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "scheduler/protocol/packet.h"
#include "scheduler/server/alarm.h"
#include "scheduler/server/log.h"
#include "scheduler/server/server.h"
#include "tests/unit/scheduler/server/processes.h"

namespace {

// Allocations of this thread until some fail; negative: none does. And how many fail then.
thread_local long until_failure = -1;
thread_local long failures = 1;

bool fails() {
  if (until_failure < 0) return false;
  if (until_failure >= failures) {
    --until_failure;
    return false;
  }
  // The last ones count down to -1.
  --until_failure;
  return true;
}

// As the standard has it: the new handler may find memory, or throw.
void* allocate(std::size_t bytes) {
  bool failed = fails();
  for (;;) {
    void* const memory = failed ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
    if (memory != nullptr) return memory;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
    failed = false;
  }
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept try {
  return allocate(bytes);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new[](std::size_t bytes, const std::nothrow_t& tag) noexcept {
  return operator new(bytes, tag);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

namespace rota::test {
namespace {

using protocol::Kind;
using protocol::Message;

// A rotad in this process. It runs only inside of pump(), and only there do allocations fail.
struct Rotad {
  Rotad() {
    static const bool logs = (server::log::start("error"), true);
    REQUIRE(logs);
    server::Options options;
    options.socket = folder / "rotad.sock";
    options.lock_directory = folder / "locks";
    auto opened = server::Server::open(io, options);
    REQUIRE(opened);
    server = std::move(*opened);
    server->start();
  }
  void pump() {
    std::swap(until_failure, set);
    server->poll();
    std::swap(until_failure, set);
  }
  TemporaryFolder folder;
  asio::io_context io{1};
  std::unique_ptr<server::Server> server;
  long set = -1;  // which allocation fails
};

// Speaks to it while it pumps.
struct Peer {
  explicit Peer(Rotad& daemon) : rotad(daemon), socket(connect_to(daemon.folder / "rotad.sock")) { REQUIRE(socket); }
  void send(Message sent) {
    sent.version = protocol::kVersion;
    if (sent.kind == Kind::kHello) sent.version = protocol::kOldestVersion;
    send_packet(socket.get(), &sent, sizeof sent);
    rotad.pump();
  }
  // Nothing: the connection ended, or no answer of this kind came.
  std::optional<Message> answer(Kind kind) {
    std::optional<Message> found;
    eventually([&] {
      rotad.pump();
      pollfd comes{socket.get(), POLLIN, 0};
      while (!found && poll(&comes, 1, 0) == 1) {
        const auto next = receive(socket.get(), pages);
        if (!next) return true;
        if (next->kind == kind || next->kind == Kind::kRefused) found = next;
      }
      return found.has_value();
    });
    return found && found->kind == kind ? found : std::nullopt;
  }
  bool hello() {
    Message hello = message(Kind::kHello);
    hello.body.hello.newest_version = protocol::kVersion;
    send(hello);
    return answer(Kind::kWelcome).has_value();
  }
  std::optional<std::uint32_t> add_gpu() {
    Message add = message(Kind::kAddGpu);
    add.body.add_gpu.uuid = uuid(1);
    add.body.add_gpu.total_bytes = std::uint64_t{1} << 30;
    send(add);
    const auto added = answer(Kind::kGpuAdded);
    return added ? std::optional(added->body.gpu_added.index) : std::nullopt;
  }
  // Sends every message of a program's life. False: something was refused.
  bool live() {
    if (!hello()) return false;
    Message session = message(Kind::kSession);
    session.body.session = {
        .id = "a-session-with-a-long-name", .device_bytes = 1 << 28, .host_bytes = 1 << 28, .name = {}};
    send(session);
    const auto gpu = add_gpu();
    if (!gpu) return false;
    Message reserve = message(Kind::kReserve);
    reserve.body.reserve = {.gpu = *gpu,
                            .number = 1,
                            .device_bytes = 1 << 20,
                            .movable_bytes = 1 << 20,
                            .fixed_bytes = 0,
                            .swapped_bytes = 0};
    send(reserve);
    if (!answer(Kind::kReserved)) return false;
    Message want = message(Kind::kWant);
    want.body.want.gpus = std::uint64_t{1} << *gpu;
    send(want);
    for (const Kind kind : {Kind::kUsage, Kind::kRoom, Kind::kState, Kind::kGiveBack}) send(message(kind));
    Peer asks(rotad);
    Message status = message(Kind::kStatus);
    asks.send(status);
    if (!asks.answer(Kind::kStatusDaemon)) return false;
    Peer stranger(rotad);
    send_packet(stranger.socket.get(), "garbage", 7);
    rotad.pump();
    return true;
  }

  Rotad& rotad;
  Descriptor pages[2];
  Descriptor socket;
};

// A program that is there all the time.
struct Veteran : Peer {
  explicit Veteran(Rotad& daemon) : Peer(daemon) {
    REQUIRE(hello());
    gpu = add_gpu().value();
    void* const page = mmap(nullptr, protocol::kPageBytes, PROT_READ, MAP_SHARED, pages[0].get(), 0);
    REQUIRE(page != MAP_FAILED);
    lease = static_cast<const protocol::LeasePage*>(page);
  }
  bool gets_its_turn() {
    Message want = message(Kind::kWant);
    want.body.want.gpus = std::uint64_t{1} << gpu;
    send(want);
    const bool granted = eventually([&] {
      rotad.pump();
      return lease->gpus[0].grant != 0;
    });
    want.body.want.gpus = 0;
    send(want);
    Message back = message(Kind::kGiveBack);
    back.body.give_back.grant = lease->gpus[0].grant;
    send(back);
    return granted;
  }
  std::uint32_t gpu = 0;
  const protocol::LeasePage* lease = nullptr;
};

// Calls `lives` with a failure at each allocation in turn, until there are no more.
template <typename Lives>
void fail_each_allocation(Rotad& rotad, const Lives& lives) {
  for (long which = 0;; which += ROTA_TEST_EVERY) {
    CAPTURE(which);
    rotad.set = which + failures - 1;
    lives();
    if (std::exchange(rotad.set, -1) >= failures) return;
    REQUIRE(which < 100000);
  }
}

TEST_CASE("an allocation that fails is served from the reserve, so no program notices") {
  Rotad rotad;
  Veteran veteran(rotad);
  fail_each_allocation(rotad, [&] { CHECK(Peer(rotad).live()); });
  CHECK(veteran.gets_its_turn());
}

TEST_CASE("allocations that fail for good cost their own program at most, and no other") {
  failures = GENERATE(1, 2, 5);
  Rotad rotad;
  Veteran veteran(rotad);
  std::set_new_handler(nullptr);  // there is no reserve
  bool refused = false;
  fail_each_allocation(rotad, [&] {
    refused = !Peer(rotad).live() || refused;
    const long left = std::exchange(rotad.set, -1);
    CHECK(veteran.gets_its_turn());
    CHECK(Peer(rotad).live());
    rotad.set = left;
  });
  CHECK(refused);
  failures = 1;
}

TEST_CASE("an alarm that failed for want of memory may be set for the same moment again") {
  std::set_new_handler(nullptr);
  asio::io_context io{1};
  const auto at = std::chrono::steady_clock::now().time_since_epoch();
  int done = 0;
  int failing = GENERATE(0, 1);
  server::Alarm alarm(io, "do what is due", [&] {
    if (failing-- > 0) throw std::bad_alloc();
    ++done;
  });
  SECTION("the work") {
    const int once = 1 - failing;
    alarm.set(at);
    io.run();
    CHECK(done == once);
    alarm.set(at);
    io.restart();
    io.run();
    CHECK(done == 1);
  }
  SECTION("the wait") {
    failing = 0;
    until_failure = 0;
    CHECK_THROWS_AS(alarm.set(at), std::bad_alloc);
    until_failure = -1;
    alarm.set(at);
    io.run();
    CHECK(done == 1);
  }
}

}  // namespace
}  // namespace rota::test
