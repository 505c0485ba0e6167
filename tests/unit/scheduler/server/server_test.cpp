// rotad as clients see it: a real daemon process, real sockets and pages, real deaths.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <random>

#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

using protocol::Kind;
using protocol::LeasePage;
using protocol::Message;

// A process that holds GPU 1 and waits to be killed. With `with_child` a child of it keeps the socket open.
struct HolderProcess {
  pid_t pid = -1;
  pid_t child = -1;

  HolderProcess(const std::string& socket, bool with_child) {
    int pipes[2];
    REQUIRE(pipe2(pipes, O_CLOEXEC) == 0);
    pid = fork();
    if (pid == 0) {
      Client client(socket, "holder");
      std::uint32_t gpu = 0;
      client.add_gpu(1, &gpu);
      client.want(std::uint64_t{1} << gpu);
      pid_t inheritor = 0;
      if (client.wait_for_grant() && with_child) {
        inheritor = fork();
        if (inheritor == 0) {
          while (true) pause();
        }
      }
      if (write(pipes[1], &inheritor, sizeof inheritor) < 0) _exit(1);
      while (true) pause();
    }
    close(pipes[1]);
    REQUIRE(read(pipes[0], &child, sizeof child) == static_cast<ssize_t>(sizeof child));
    close(pipes[0]);
  }
  void kill_it() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = -1;
  }
  ~HolderProcess() {
    if (pid > 0) kill_it();
    if (child > 0) kill(child, SIGKILL);
  }
};

TEST_CASE("clients take turns in exclusive mode, told by their pages alone") {
  Daemon daemon({"--mode", "exclusive", "--quantum", "50ms"});
  Client first(daemon.socket());
  Client second(daemon.socket());
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(first.add_gpu(1, &gpu));
  REQUIRE_FALSE(second.add_gpu(1));
  const std::uint64_t mask = std::uint64_t{1} << gpu;
  first.want(mask);
  REQUIRE(first.wait_for_grant());
  CHECK(first.lease->gpus[gpu].grant != 0);
  CHECK(first.lease->gpus[0].waiters == 0);
  CHECK(first.lease->gpus[0].drain_at_ns == 0);
  for (int turn = 0; turn < 20; ++turn) {
    Client& holder = turn % 2 == 0 ? first : second;
    Client& waiter = turn % 2 == 0 ? second : first;
    waiter.want(mask);
    REQUIRE(holder.wait_for(
        [](const LeasePage& page) { return page.gpus[0].waiters != 0 && page.gpus[0].drain_at_ns != 0; }));
    // The client that is next knows when, and no longer once it has its turn.
    const std::uint64_t drain_at = holder.lease->gpus[0].drain_at_ns;
    REQUIRE(waiter.wait_for([&](const LeasePage& page) { return page.gpus[0].next_turn_ns == drain_at; }));
    CHECK(holder.lease->gpus[0].next_turn_ns == 0);
    CHECK(waiter.lease->gpus[0].grant == 0);
    const std::uint32_t grant = holder.lease->gpus[0].grant;
    holder.give_back(grant);
    REQUIRE(waiter.wait_for_grant());
    CHECK(holder.wait_for([](const LeasePage& page) { return page.gpus[0].grant == 0; }));
  }
}

TEST_CASE("a lease page cannot be written, and no page resized, by the client") {
  Daemon daemon;
  Client client(daemon.socket());
  CHECK(mmap(nullptr, protocol::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, client.lease_descriptor, 0) ==
        MAP_FAILED);
  CHECK(mprotect(const_cast<LeasePage*>(client.lease), protocol::kPageBytes, PROT_READ | PROT_WRITE) != 0);
  CHECK(ftruncate(client.lease_descriptor, 0) != 0);
  CHECK(ftruncate(client.usage_descriptor, 0) != 0);
  CHECK(ftruncate(client.usage_descriptor, 1 << 20) != 0);
  const int again = open(("/proc/self/fd/" + std::to_string(client.lease_descriptor)).c_str(), O_RDWR);
  if (again >= 0) {
    CHECK(mmap(nullptr, protocol::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
    CHECK(pwrite(again, "x", 1, 0) != 1);
    close(again);
  }
}

TEST_CASE("a holder that is killed frees its lease at once, even if its child keeps the socket (nvshare 9)") {
  const bool with_child = GENERATE(false, true);
  Daemon daemon({"--mode", "exclusive"});
  HolderProcess holder(daemon.socket(), with_child);
  Client waiter(daemon.socket());
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(waiter.add_gpu(1, &gpu));
  waiter.want(std::uint64_t{1} << gpu);
  REQUIRE(eventually([&] { return status(daemon.socket()).gpus.at(0).waiters == 1; }));
  CHECK(waiter.lease->gpus[0].grant == 0);
  holder.kill_it();
  CHECK(waiter.wait_for_grant());
}

TEST_CASE("a live process whose connection ended does not keep its lease from others for ever") {
  Daemon daemon({"--mode", "exclusive"});
  auto holder = std::make_unique<HolderProcess>(daemon.socket(), false);
  auto lost = std::make_unique<Client>(daemon.socket());
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(lost->add_gpu(1, &gpu));
  holder->kill_it();
  lost->want(std::uint64_t{1} << gpu);
  REQUIRE(lost->wait_for_grant());
  Client waiter(daemon.socket());
  REQUIRE_FALSE(waiter.add_gpu(1, &gpu));
  waiter.want(std::uint64_t{1} << gpu);
  REQUIRE(eventually([&] { return status(daemon.socket()).gpus.at(0).waiters == 1; }));
  lost.reset();  // our process lives on
  CHECK(waiter.wait_for_grant());
}

TEST_CASE("garbage of every size hurts nobody but its sender (nvshare 11)") {
  Daemon daemon;
  std::mt19937 random(7);
  for (std::size_t size = 1; size <= 320; ++size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const int descriptor = connect_to(daemon.socket());
    REQUIRE(descriptor >= 0);
    send_packet(descriptor, bytes.data(), bytes.size());
    const auto answer = receive(descriptor);
    REQUIRE(answer);
    CHECK(answer->kind == Kind::kRefused);
    CHECK_FALSE(receive(descriptor));
    close(descriptor);
  }
  CHECK(serves(daemon));
}

TEST_CASE("messages of every kind with random bodies hurt nobody but their sender (nvshare 11)") {
  Daemon daemon;
  std::mt19937 random(11);
  for (unsigned kind = 0; kind < 400; ++kind) {
    for (const bool after_hello : {false, true}) {
      const int descriptor = connect_to(daemon.socket());
      if (after_hello) {
        const Message hello = message(Kind::kHello);
        send_packet(descriptor, &hello, sizeof hello);
      }
      Message odd = message(static_cast<Kind>(kind % 200));
      for (std::uint8_t& byte : odd.body.bytes) byte = static_cast<std::uint8_t>(random());
      send_packet(descriptor, &odd, sizeof odd);
      close(descriptor);
    }
  }
  CHECK(serves(daemon));
}

TEST_CASE("a name that is not terminated is cut, and control characters cannot reach a terminal (nvshare 11)") {
  Daemon daemon;
  const int descriptor = connect_to(daemon.socket());
  Message hello = message(Kind::kHello);
  memset(hello.body.hello.name, 'A', sizeof hello.body.hello.name);
  memcpy(hello.body.hello.name, "\x1b[2J", 4);
  send_packet(descriptor, &hello, sizeof hello);
  REQUIRE(receive(descriptor));
  const protocol::Snapshot rows = status(daemon.socket());
  REQUIRE(rows.programs.size() == 1);
  CHECK(std::string(rows.programs[0].name) == "?[2J" + std::string(protocol::kNameLength - 5, 'A'));
  close(descriptor);
}

TEST_CASE("1 100 idle connections do not keep others out (nvshare 11)") {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  REQUIRE(limit.rlim_cur > 1200);
  Daemon daemon;
  std::vector<int> idle;
  for (int i = 0; i < 1100; ++i) {
    idle.push_back(connect_to(daemon.socket()));
    REQUIRE(idle.back() >= 0);
  }
  CHECK(serves(daemon));
  for (const int descriptor : idle) close(descriptor);
  CHECK(serves(daemon));
}

TEST_CASE("a daemon that runs out of descriptors serves again once there are some") {
  Daemon daemon;
  const rlimit few{.rlim_cur = 256, .rlim_max = 256};
  REQUIRE(prlimit(daemon.pid(), RLIMIT_NOFILE, &few, nullptr) == 0);
  std::vector<int> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(connect_to(daemon.socket()));
    REQUIRE(idle.back() >= 0);
  }
  for (const int descriptor : idle) close(descriptor);
  CHECK(serves(daemon));
}

TEST_CASE("connections that break off at any point leave nothing behind (nvshare 11)") {
  Daemon daemon;
  const Message hello = message(Kind::kHello);
  const Message ask = message(Kind::kStatus);
  for (int i = 0; i < 300; ++i) {
    const int descriptor = connect_to(daemon.socket());
    REQUIRE(descriptor >= 0);
    // Gone before the answer can be sent: a careless daemon would get SIGPIPE.
    if (i % 3 != 0) send_packet(descriptor, &hello, sizeof hello);
    if (i % 3 != 1) send_packet(descriptor, &ask, sizeof ask);
    close(descriptor);
  }
  CHECK(serves(daemon));
  CHECK(eventually([&] { return status(daemon.socket()).programs.empty(); }));
}

TEST_CASE("a peer that asks for ever and never reads is not queued for, and others are served") {
  Daemon daemon;
  const int descriptor = connect_to(daemon.socket());
  fcntl(descriptor, F_SETFL, O_NONBLOCK);
  const Message ask = message(Kind::kStatus);
  int sent = 0;
  while (send(descriptor, &ask, sizeof ask, MSG_NOSIGNAL) > 0 && sent < 100000) {
    ++sent;
    if (sent % 64 == 0) CHECK(status(daemon.socket()).programs.empty());
  }
  CHECK(sent < 100000);  // the daemon stopped reading
  CHECK(serves(daemon));
  close(descriptor);
}

TEST_CASE("memory that grows in the usage page is noticed without a message") {
  Daemon daemon({"--mode", "automatic", "--quantum", "10ms"});
  Client first(daemon.socket());
  Client second(daemon.socket());
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(first.add_gpu(1, &gpu, 1000 << 20));
  REQUIRE_FALSE(second.add_gpu(1, &gpu, 1000 << 20));
  for (Client* client : {&first, &second}) {
    client->use(gpu, 300 << 20);
    client->want(std::uint64_t{1} << gpu);
    REQUIRE(client->wait_for_grant());
  }
  CHECK(first.lease->gpus[0].waiters == 0);
  second.use(gpu, 800 << 20);
  CHECK(first.wait_for([](const LeasePage& page) { return page.gpus[0].waiters != 0; }));
  CHECK(second.lease->gpus[0].waiters == 0);  // nobody has to yield for what it asks for itself
}

TEST_CASE("a holder that does not give back loses its grant to those who wait (nvshare 12)") {
  Daemon daemon({"--mode", "exclusive", "--quantum", "1ms", "--grace", "20ms"});
  Client deaf(daemon.socket());
  Client waiter(daemon.socket());
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(deaf.add_gpu(1, &gpu));
  REQUIRE_FALSE(waiter.add_gpu(1));
  deaf.want(std::uint64_t{1} << gpu);
  REQUIRE(deaf.wait_for_grant());
  const std::uint32_t grant = deaf.lease->gpus[0].grant;
  waiter.want(std::uint64_t{1} << gpu);
  CHECK(waiter.wait_for_grant());
  CHECK(deaf.lease->gpus[0].grant == 0);
  deaf.give_back(grant);
  CHECK(serves(daemon));
  CHECK(waiter.lease->gpus[0].grant != 0);
}

TEST_CASE("after a restart a program that still runs keeps its GPU") {
  Daemon daemon({"--mode", "exclusive"});
  Client queued(daemon.socket());
  Client running(daemon.socket());
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(queued.add_gpu(1, &gpu));
  REQUIRE_FALSE(running.add_gpu(1));
  queued.want(std::uint64_t{1} << gpu);
  REQUIRE(queued.wait_for_grant());
  running.want(std::uint64_t{1} << gpu, true);
  CHECK(running.wait_for_grant());
}

TEST_CASE("status shows GPUs, clients, bytes, who holds and who waits") {
  Daemon daemon({"--mode", "exclusive"});
  Client holder(daemon.socket(), "trainer");
  Client waiter(daemon.socket(), "notebook");
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(holder.add_gpu(3, &gpu));
  REQUIRE_FALSE(waiter.add_gpu(3));
  holder.use(gpu, 123456);
  holder.usage->gpus[gpu].memory_mode = static_cast<std::uint8_t>(protocol::MemoryMode::kNativeNoPaging);
  waiter.usage->gpus[gpu].memory_mode = 200;  // of a newer program, or made up
  holder.want(std::uint64_t{1} << gpu);
  REQUIRE(holder.wait_for_grant());
  waiter.want(std::uint64_t{1} << gpu);
  REQUIRE(holder.wait_for([](const LeasePage& page) { return page.gpus[0].waiters != 0; }));
  const protocol::Snapshot rows = status(daemon.socket());
  REQUIRE(rows.gpus.size() == 1);
  CHECK(rows.gpus[0].uuid == uuid(3));
  CHECK(rows.gpus[0].used_bytes == 123456);
  CHECK(rows.gpus[0].holders == 1);
  CHECK(rows.gpus[0].waiters == 1);
  CHECK(std::string(rows.gpus[0].name) == "Test GPU");
  REQUIRE(rows.programs.size() == 2);
  CHECK(std::string(rows.programs[0].name) == "trainer");
  CHECK(rows.programs[0].pid == getpid());
  CHECK(rows.programs[0].held_gpus == std::uint64_t{1} << gpu);
  CHECK(rows.tasks[0].device_bytes == 123456);
  CHECK(rows.tasks[0].mode == protocol::MemoryMode::kNativeNoPaging);
  CHECK(rows.tasks[1].mode == protocol::MemoryMode::kUnknown);
  CHECK(rows.programs[1].wanted_gpus == std::uint64_t{1} << gpu);
  CHECK(rows.daemon.pid == static_cast<std::uint64_t>(daemon.pid()));
  CHECK(rows.daemon.grants == 1);
}

TEST_CASE("status says of each client how long it has held and waited, and what is not known as not known") {
  Daemon daemon({"--mode", "exclusive"});
  Client holder(daemon.socket(), "trainer");
  Client waiter(daemon.socket(), "notebook");
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(holder.add_gpu(3, &gpu));
  REQUIRE_FALSE(waiter.add_gpu(3));
  holder.want(std::uint64_t{1} << gpu);
  REQUIRE(holder.wait_for_grant());
  waiter.want(std::uint64_t{1} << gpu);
  protocol::Snapshot rows;
  REQUIRE(eventually([&] {
    rows = status(daemon.socket());
    return rows.tasks.size() == 2 && rows.programs[1].waited_ns != 0;
  }));
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(rows.tasks[i].client == rows.programs[i].client);
    CHECK(rows.tasks[i].known == 0);
    CHECK(rows.tasks[i].gpu == gpu);
    CHECK(rows.tasks[i].light == 0);
  }
  CHECK(rows.programs[0].held_ns != 0);
  CHECK(rows.programs[0].waited_ns <= rows.programs[0].held_ns);
  CHECK(rows.programs[1].held_ns == 0);
  CHECK(rows.gpus[0].reason == protocol::SharingReason::kMode);
  CHECK(rows.gpus[0].trial_permille == 0);
}

TEST_CASE("a second daemon for the same socket is refused and told who has it") {
  Daemon daemon;
  const Outcome second =
      run({.arguments = {ROTAD, "--socket", daemon.socket(), "--lock-directory", daemon.locks()}, .environment = {}});
  CHECK(second.code() == 1);
  CHECK(second.errors.find("pid " + std::to_string(daemon.pid())) != std::string::npos);
  CHECK(serves(daemon));
}

TEST_CASE("a GPU that another daemon manages is refused with that daemon's pid and socket, until that releases it") {
  Daemon first;
  Daemon second({"--lock-directory", first.locks()});
  auto owner = std::make_unique<Client>(first.socket());
  REQUIRE_FALSE(owner->add_gpu(1));
  Client client(second.socket());
  const auto refused = client.add_gpu(1);
  REQUIRE(refused);
  CHECK(refused->find("pid " + std::to_string(first.pid())) != std::string::npos);
  CHECK(refused->find(first.socket()) != std::string::npos);
  CHECK_FALSE(client.add_gpu(2));  // it affects only that GPU
  owner.reset();
  CHECK(eventually([&] { return !client.add_gpu(1); }));
}

TEST_CASE("a daemon ends cleanly on SIGTERM and SIGINT and takes its socket with it") {
  const int signal = GENERATE(SIGTERM, SIGINT);
  Daemon daemon;
  Client client(daemon.socket());
  CHECK(daemon.end(signal) == 0);
  CHECK(access(daemon.socket().c_str(), F_OK) != 0);
  CHECK_FALSE(receive(client.descriptor));
}

TEST_CASE("the socket of a daemon that was killed is taken over") {
  TemporaryFolder folder;
  {
    Daemon killed({}, folder / "rotad.sock");
    killed.end(SIGKILL);
  }
  REQUIRE(access((folder / "rotad.sock").c_str(), F_OK) == 0);
  Daemon next({}, folder / "rotad.sock");
  CHECK(serves(next));
}

TEST_CASE("a file that is not a socket is not taken away") {
  TemporaryFolder folder;
  write_file(folder / "rotad.sock", "precious");
  const Outcome outcome =
      run({.arguments = {ROTAD, "--socket", folder / "rotad.sock", "--lock-directory", folder / "locks"},
           .environment = {}});
  CHECK(outcome.code() == 1);
  CHECK(outcome.errors.find("is not a socket") != std::string::npos);
  CHECK(read_file(folder / "rotad.sock") == "precious");
}

TEST_CASE("nonsense on the command line is refused in words (nvshare 11: a quantum of 0 spins)") {
  TemporaryFolder folder;
  for (const auto& [option, value] : std::vector<std::pair<std::string, std::string>>{
           {"--quantum", "0"}, {"--quantum", "-1s"}, {"--quantum", "0ms"}, {"--mode", "fair"}, {"--idle-exit", "-1"}}) {
    const Outcome outcome = run({.arguments = {ROTAD, "--socket", folder / "s", option, value}, .environment = {}});
    INFO(option << " " << value << ": " << outcome.errors);
    CHECK(outcome.code() > 0);
    CHECK(outcome.errors.find(option) != std::string::npos);
    CHECK(access((folder / "s").c_str(), F_OK) != 0);
  }
}

}  // namespace
}  // namespace rota::test
