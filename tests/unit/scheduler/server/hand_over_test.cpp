// Memory that is handed over between clients: which client gets it, and what rotad accepts from no client.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "scheduler/base/descriptor.h"
#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

using protocol::Kind;
using protocol::Message;

constexpr std::uint64_t kMega = 1 << 20;

// A client that swaps, on a GPU of 1 GiB with contexts of 1 MiB.
struct Swapping : Client {
  Swapping(const Daemon& daemon, std::uint64_t mega, std::uint64_t resident)
      : Client(daemon.socket(), "swapping", false) {
    REQUIRE_FALSE(add_gpu(1, &gpu));
    usage->gpus[gpu].resident_bytes = resident * kMega;
    use(gpu, mega * kMega);
    want(std::uint64_t{1} << gpu);
  }
  void hand_over(int memory) const { Client::hand_over(gpu, 128 * kMega, {memory}); }
  // Returns once rotad has read everything sent before.
  void is_heard() { REQUIRE_FALSE(add_gpu(1)); }
  bool is_asked_to_clear() const {
    return wait_for([&](const protocol::LeasePage& page) { return page.gpus[gpu].clear_bytes != 0; });
  }
  bool may_hand_over() const { return lease->gpus[gpu].hands_over != 0; }
  std::uint32_t gpu = 0;
};

// The donor: a client that is idle, with all of its memory on the GPU.
struct Giver : Swapping {
  explicit Giver(const Daemon& daemon) : Swapping(daemon, 700, 700) {
    REQUIRE(wait_for_grant());
    want(0);
    give_back(lease->gpus[0].grant);
    REQUIRE(wait_for([](const protocol::LeasePage& page) { return page.gpus[0].grant == 0; }));
  }
};
// The recipient: a client that has just been granted the GPU and has next to nothing there.
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

TEST_CASE("memory that one client evicts goes to the client that needs it, and status counts it") {
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
  CHECK(eventually([&] { return handed_over(daemon) == 128 * kMega; }));
}

TEST_CASE("a client that evicts before another one has a deficit hands its memory over once one has") {
  const Daemon daemon;
  const Giver giver(daemon);
  Swapping taker(daemon, 2, 2);
  REQUIRE(taker.wait_for_grant());
  taker.ask(taker.gpu, 700 * kMega);  // it is about to allocate
  REQUIRE(giver.is_asked_to_clear());
  CHECK_FALSE(giver.may_hand_over());
  const std::uint64_t asked = giver.lease->gpus[giver.gpu].clear_bytes;
  taker.use(taker.gpu, 700 * kMega);
  const Message usage = message(Kind::kUsage);
  send_packet(taker.descriptor, &usage, sizeof usage);
  taker.is_heard();
  CHECK(giver.lease->gpus[giver.gpu].clear_bytes == asked);  // so the bytes tell the client nothing
  CHECK(eventually([&] { return giver.may_hand_over(); }));
}

TEST_CASE("memory that no client needs is closed") {
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

TEST_CASE("a descriptor of anything but memory is refused, and so are all later ones of the same user") {
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

TEST_CASE("rotad keeps none of several descriptors that come with one message") {
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

// How a process becomes one of another trust domain, before it connects; false: this machine does not permit it.
using Enter = bool (*)();

bool stays() {
  return true;
}
bool becomes_another_user() {
  constexpr uid_t kNobody = 65534;
  return setresuid(kNobody, kNobody, kNobody) == 0;
}
bool enters_user_namespace() {
  return unshare(CLONE_NEWUSER) == 0;
}
// The next child is its first process.
bool enters_pid_namespace() {
  return unshare(CLONE_NEWPID) == 0;
}

// A process that is a client: it says when it has reached a step, and continues when it is told to. It must not fail a
// test itself: it ends with a status.
struct ClientProcess {
  // The donor is granted the GPU, gives it back with all of its memory still there, and hands `memory` over when it is
  // asked to evict.
  enum class Role : std::uint8_t { kGiver, kTaker };

  ClientProcess(const Daemon& daemon, Role role, Enter enter = stays, int memory = -1) {
    int said[2];
    int asked[2];
    REQUIRE(pipe2(said, O_CLOEXEC) == 0);
    REQUIRE(pipe2(asked, O_CLOEXEC) == 0);
    child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      close(asked[1]);
      close(said[0]);
      const char no = 'n';
      if (!enter()) _exit(write(said[1], &no, 1) == 1 ? 0 : 1);
      // It has the pipes as well, and ends when this process closes its end.
      if (const pid_t next = enter == enters_pid_namespace ? fork() : 0; next != 0) {
        close(said[1]);
        int status = 1;
        _exit(next > 0 && waitpid(next, &status, 0) == next && status == 0 ? 0 : 1);
      }
      try {
        _exit(run(daemon, role, said[1], asked[0], memory) ? 0 : 1);
      } catch (const std::exception&) {
        _exit(1);
      }
    }
    close(said[1]);
    close(asked[0]);
    says = Descriptor(said[0]);
    end = Descriptor(asked[1]);
    possible = hears() == 'y';
  }
  ~ClientProcess() {
    if (child < 0) return;
    end = Descriptor();
    waitpid(child, nullptr, 0);
  }
  ClientProcess(const ClientProcess&) = delete;
  ClientProcess& operator=(const ClientProcess&) = delete;

  // The next word that it says; 0: it has ended.
  char hears() const {
    char word = 0;
    return read(says.get(), &word, 1) == 1 ? word : '\0';
  }
  void tell_to_go_on() const {
    const char word = 'g';
    REQUIRE(write(end.get(), &word, 1) == 1);
  }
  // At once, whatever it does.
  void kill() {
    ::kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    child = -1;
  }

  static bool run(const Daemon& daemon, Role role, int said, int asked, int memory) {
    const auto say = [said](char word) { return write(said, &word, 1) == 1; };
    // False: the test is over.
    const auto may_go_on = [asked] {
      char word = 0;
      return read(asked, &word, 1) == 1;
    };
    Client client(daemon.socket(), "swapping", false);
    std::uint32_t gpu = 0;
    if (client.add_gpu(1, &gpu)) return false;
    client.usage->gpus[gpu].resident_bytes = (role == Role::kGiver ? 700 : 2) * kMega;
    client.use(gpu, 700 * kMega);
    client.want(std::uint64_t{1} << gpu);
    if (!client.wait_for_grant()) return false;
    if (role == Role::kGiver) {
      client.want(0);
      client.give_back(client.lease->gpus[0].grant);
      if (!client.wait_for([](const protocol::LeasePage& page) { return page.gpus[0].grant == 0; })) return false;
    }
    if (!say('y')) return false;
    if (!may_go_on()) return true;
    if (role == Role::kTaker) {
      // A child that has its socket, and that no fork handler has told of it.
      if (fork() == 0) _exit(say('c') && !may_go_on() ? 0 : 1);
      return !may_go_on();
    }
    const auto asked_to = [&](const protocol::LeasePage& page) {
      return page.gpus[gpu].clear_bytes != 0 && page.gpus[gpu].hands_over != 0;
    };
    if (!client.wait_for(asked_to)) return false;
    for (int piece = 0; piece < 3; ++piece) client.hand_over(gpu, 128 * kMega, {memory});
    return ::kill(getpid(), SIGKILL) == 0;  // at once, while rotad is perhaps still handling the message
  }

  pid_t child = -1;
  Descriptor says;
  Descriptor end;
  bool possible = false;
};

// Whether memory is handed over between this process and one that has entered the other domain.
bool is_handed_over_to(const Daemon& daemon, Enter enter, bool& possible) {
  const Giver giver(daemon);
  const ClientProcess taker(daemon, ClientProcess::Role::kTaker, enter);
  possible = taker.possible;
  if (!possible) return false;
  REQUIRE(giver.is_asked_to_clear());
  return giver.may_hand_over();
}

// Other users may reach its socket.
void open_to_all(const Daemon& daemon) {
  const std::string folder = daemon.socket().substr(0, daemon.socket().rfind('/'));
  for (const std::string& each : {folder, folder.substr(0, folder.rfind('/'))}) REQUIRE(chmod(each.c_str(), 0755) == 0);
}

TEST_CASE("memory is handed over within one trust domain: a user in one user and pid namespace") {
  const auto [what, enter] = GENERATE(table<const char*, Enter>({
      {"another process like this", stays},
      {"another user", becomes_another_user},
      {"a user namespace of its own", enters_user_namespace},
      {"a pid namespace of its own", enters_pid_namespace},
  }));
  const bool machine = GENERATE(false, true);
  CAPTURE(what, machine);
  const Daemon daemon(machine ? std::vector<std::string>{"--trust", "machine"} : std::vector<std::string>{});
  open_to_all(daemon);
  bool possible = false;
  const bool handed_over = is_handed_over_to(daemon, enter, possible);
  if (!possible) {
    WARN("left out: this machine does not permit " << what);
    return;
  }
  CHECK(handed_over == (machine || enter == stays));
}

// Memory for which the test can tell whether anybody still has it, even in transit: its lock is held as long as any
// duplicate of this descriptor is open.
struct Watched {
  Watched() : memory(make_memory()), other(open(fmt::format("/proc/self/fd/{}", memory.get()).c_str(), O_RDWR)) {
    REQUIRE(other);
    REQUIRE(flock(memory.get(), LOCK_EX) == 0);
  }
  bool is_gone() const { return flock(other.get(), LOCK_EX | LOCK_NB) == 0; }
  Descriptor memory;
  Descriptor other;
};

TEST_CASE("what a program has handed over right before it died reaches the recipient or is freed") {
  const Daemon daemon;
  Watched watched;
  ClientProcess giver(daemon, ClientProcess::Role::kGiver, stays, watched.memory.get());
  watched.memory = Descriptor();
  REQUIRE(giver.possible);
  Taker taker(daemon);
  CHECK_FALSE(watched.is_gone());
  giver.tell_to_go_on();
  CHECK(giver.hears() == '\0');
  // What was read from the dead program's socket is passed on, and the rest is closed with the socket.
  std::uint64_t received = 0;
  REQUIRE(eventually([&] {
    pollfd comes{taker.descriptor, POLLIN, 0};
    if (poll(&comes, 1, 0) == 1) {
      Descriptor came;
      const auto extent = receive(taker.descriptor, {&came, 1});
      REQUIRE(extent);
      CHECK(extent->kind == Kind::kExtent);
      CHECK(came);
      CHECK_FALSE(watched.is_gone());
      ++received;
    }
    return watched.is_gone();
  }));
  CHECK(received <= 3);
  CHECK(eventually([&] { return handed_over(daemon) == received * 128 * kMega; }));
  taker.is_heard();  // the next message that it receives is the answer to this
}

TEST_CASE("memory on its way to a program that dies is freed") {
  const bool giver_too = GENERATE(false, true);
  CAPTURE(giver_too);
  const Daemon daemon;
  std::optional<Giver> giver(std::in_place, daemon);
  ClientProcess taker(daemon, ClientProcess::Role::kTaker);
  REQUIRE(taker.possible);
  Watched watched;  // not before: a child would have its descriptors
  REQUIRE(giver->is_asked_to_clear());
  for (int piece = 0; piece < 3; ++piece) giver->hand_over(watched.memory.get());
  watched.memory = Descriptor();
  giver->is_heard();
  CHECK(handed_over(daemon) == 3 * 128 * kMega);
  CHECK_FALSE(watched.is_gone());
  taker.kill();
  if (giver_too) giver.reset();
  CHECK(watched.is_gone());
  CHECK(eventually([&] { return status(daemon.socket()).programs.size() == (giver_too ? 0 : 1); }));
  CHECK(serves(daemon));
}

TEST_CASE("memory on its way to a program that dies exists as long as a child of it has its socket, and no longer") {
  const Daemon daemon;
  const Giver giver(daemon);
  ClientProcess taker(daemon, ClientProcess::Role::kTaker);
  REQUIRE(taker.possible);
  Watched watched;  // not before: a child would have its descriptors
  REQUIRE(giver.is_asked_to_clear());
  giver.hand_over(watched.memory.get());
  watched.memory = Descriptor();
  REQUIRE(eventually([&] { return handed_over(daemon) == 128 * kMega; }));
  taker.tell_to_go_on();
  REQUIRE(taker.hears() == 'c');
  taker.kill();
  REQUIRE(eventually([&] { return status(daemon.socket()).programs.size() == 1; }));
  // rotad has closed its end, which discards nothing at the other one.
  CHECK_FALSE(watched.is_gone());
  taker.end = Descriptor();
  CHECK(taker.hears() == '\0');
  CHECK(eventually([&] { return watched.is_gone(); }));
}

}  // namespace
}  // namespace rota::test
