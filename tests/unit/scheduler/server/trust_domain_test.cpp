// rotad treats users of two containers as two users: what they see, join, take and change. A container is a pid
// namespace or a user namespace of a process that this one starts.
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "scheduler/server/budget.h"
#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

using protocol::Kind;
using protocol::Message;

constexpr int kNotPermitted = 99;

// What `program` returns, run by the first process of another container: as root of another pid namespace, or, with
// CLONE_NEWUSER, as a user without permissions in a user namespace of its own. Nothing: this machine does not permit
// it.
std::optional<int> in_container(int kind, const std::function<int()>& program) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (kind == CLONE_NEWUSER && (setgid(kNobody) != 0 || setuid(kNobody) != 0)) _exit(kNotPermitted);
    if (unshare(kind) != 0) _exit(kNotPermitted);
    const pid_t first = fork();
    if (first == 0) {
      try {
        _exit(program());
      } catch (const std::exception&) {
        _exit(98);
      }
    }
    int status = 0;
    _exit(first > 0 && waitpid(first, &status, 0) == first && WIFEXITED(status) ? WEXITSTATUS(status) : 97);
  }
  int status = 0;
  waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotPermitted) {
    WARN("left out: this machine does not permit the namespace");
    return std::nullopt;
  }
  return WEXITSTATUS(status);
}

// Other users may reach its sockets.
void open_to_all(const Daemon& daemon) {
  const std::string folder = daemon.socket().substr(0, daemon.socket().rfind('/'));
  for (const std::string& each : {folder, folder.substr(0, folder.rfind('/'))}) REQUIRE(chmod(each.c_str(), 0755) == 0);
}

std::string configuration(const TemporaryFolder& folder, const std::string& text) {
  write_file(folder / "rotad.toml", text);
  return folder / "rotad.toml";
}

void name_session(Client& client, std::uint64_t device_bytes) {
  Message session{.version = protocol::kVersion, .kind = Kind::kSession};
  std::string("shared").copy(session.body.session.id, 6);
  session.body.session.device_bytes = device_bytes;
  session.body.session.host_bytes = protocol::kUnlimited;
  send_packet(client.descriptor, &session, sizeof session);
}

// Whether a client gets this much, as memory that moves or that stays.
bool reserves(Client& client, std::uint32_t gpu, std::uint64_t bytes, bool moves = false) {
  Message reserve{.version = protocol::kVersion, .kind = Kind::kReserve};
  const std::uint64_t movable = moves ? bytes : 0;
  reserve.body.reserve = {.gpu = gpu,
                          .number = 1,
                          .device_bytes = bytes,
                          .movable_bytes = movable,
                          .fixed_bytes = bytes - movable,
                          .swapped_bytes = movable};
  send_packet(client.descriptor, &reserve, sizeof reserve);
  while (const auto answer = receive(client.descriptor)) {
    if (answer->kind == Kind::kReserved) return answer->body.reserved.granted != 0;
  }
  return false;
}

std::size_t names_seen(const Daemon& daemon) {
  std::size_t seen = 0;
  for (const protocol::ProgramRow& row : status(daemon.socket()).programs) {
    if (std::string(row.name) != protocol::kHiddenProgram) ++seen;
  }
  return seen;
}

TEST_CASE("the root of a container sees no names of another's programs, and the machine's root sees all") {
  const int kind = GENERATE(CLONE_NEWPID, CLONE_NEWUSER);
  const auto [trust, seen] =
      GENERATE(table<const char*, int>({{"user", 1}, {"none", 1}, {"user-everywhere", 2}, {"machine", 2}}));
  if (kind == CLONE_NEWUSER && std::string(trust) == "user-everywhere") return;  // it is another user
  CAPTURE(trust, kind);
  const TemporaryFolder folder;
  const Daemon daemon(
      {"--config", configuration(folder, "visibility = \"own\"\ntrust = \"" + std::string(trust) + "\"\n")});
  open_to_all(daemon);
  const Client ours(daemon.socket(), "ours");
  const auto theirs = in_container(kind, [&] {
    const Client client(daemon.socket(), "theirs");
    return static_cast<int>(names_seen(daemon));
  });
  if (!theirs) return;
  CHECK(*theirs == seen);
  CHECK(names_seen(daemon) == 1);
}

TEST_CASE("whose programs are shown follows a configuration that is read again") {
  const TemporaryFolder folder;
  const Daemon daemon({"--config", configuration(folder, "")});
  open_to_all(daemon);
  const Client ours(daemon.socket(), "ours");
  const auto seen = [&] {
    return in_container(CLONE_NEWUSER, [&] { return static_cast<int>(names_seen(daemon)); }).value_or(-1);
  };
  const int before = seen();
  if (before < 0) return;
  CHECK(before == 1);
  configuration(folder, "visibility = \"own\"\n");
  CHECK_THAT(ask_control(daemon.socket() + ".control", "reload"), Catch::Contains(": visibility changed"));
  CHECK(seen() == 0);
}

TEST_CASE("a session of the same name in another container is another session, with a limit of its own") {
  const bool everywhere = GENERATE(false, true);
  const Daemon daemon({"--trust", everywhere ? "user-everywhere" : "user"});
  open_to_all(daemon);
  Client ours(daemon.socket(), "ours", false);
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(ours.add_gpu(1, &gpu));
  name_session(ours, protocol::kUnlimited);
  int go[2];
  int gone[2];
  REQUIRE(pipe(go) == 0);
  REQUIRE(pipe(gone) == 0);
  std::optional<int> theirs;
  const pid_t other = fork();
  if (other == 0) {
    close(go[1]);
    theirs = in_container(CLONE_NEWPID, [&] {
      Client client(daemon.socket(), "theirs", false);
      if (client.add_gpu(1)) return 1;
      name_session(client, 1);
      if (client.add_gpu(1)) return 1;  // rotad has read it
      char byte = 'r';
      return write(gone[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 0 ? 0 : 1;
    });
    const char no = 'n';
    if (!theirs && write(gone[1], &no, 1) != 1) _exit(1);
    _exit(0);
  }
  close(go[0]);
  close(gone[1]);
  char said = 0;
  REQUIRE(read(gone[0], &said, 1) == 1);
  if (said == 'r') CHECK(reserves(ours, gpu, 1 << 20) == !everywhere);
  close(go[1]);
  close(gone[0]);
  waitpid(other, nullptr, 0);
}

TEST_CASE("root in a container may not change settings, even if it is given the control socket") {
  const auto [trust, expected] =
      GENERATE(table<const char*, const char*>({{"user", "error: settings are changed from where rotad runs"},
                                                {"user-everywhere", "ok: "},
                                                {"machine", "ok: "}}));
  CAPTURE(trust);
  const Daemon daemon({"--trust", trust});
  open_to_all(daemon);
  const std::string wanted = expected;
  const auto ask = [&] {
    const Descriptor control(connect_to(daemon.socket() + ".control"));
    const std::string request = "quantum 123ms";
    send_packet(control.get(), request.data(), request.size());
    char answer[256];
    const ssize_t length = recv(control.get(), answer, sizeof answer, 0);
    return length > 0 && std::string(answer, static_cast<std::size_t>(length)).starts_with(wanted) ? 0 : 1;
  };
  const auto theirs = in_container(CLONE_NEWPID, ask);
  if (!theirs) return;
  CHECK(*theirs == 0);
  CHECK((status(daemon.socket()).daemon.quantum_ns == 123'000'000) == (wanted == "ok: "));
}

// How many connections rotad takes from this process, and keeps as long as `kept` exists.
int connections_taken(const Daemon& daemon, std::vector<Descriptor>& kept) {
  constexpr int kMany = 100;
  int taken = 0;
  for (int i = 0; i < kMany; ++i) {
    Descriptor socket(connect_to(daemon.socket()));
    const Message ask = message(Kind::kStatus);
    send_packet(socket.get(), &ask, sizeof ask);
    const auto answer = receive(socket.get());
    if (!answer || answer->kind == Kind::kRefused) continue;
    ++taken;
    kept.push_back(std::move(socket));
  }
  return taken;
}

TEST_CASE("what a container's root can take of rotad leaves a quarter for the next, and root of the machine gets in") {
  const Daemon daemon({}, {}, 96 + 64 + 3 * 40);  // for some 60 connections
  open_to_all(daemon);
  const auto taken = in_container(CLONE_NEWPID, [&] {
    std::vector<Descriptor> kept;
    const int own = connections_taken(daemon, kept);
    // Another container, while this one keeps all that it has.
    const auto next = in_container(CLONE_NEWPID, [&] { return serves(daemon) ? 7 : 8; });
    return own < 20 || own >= 100 || next != 7 ? 1 : 0;
  });
  if (!taken) return;
  CHECK(*taken == 0);
  CHECK(serves(daemon));
}

TEST_CASE("a user gets no more of rotad by making user namespaces") {
  const Daemon daemon({}, {}, 96 + 64 + 3 * 40);
  open_to_all(daemon);
  const auto taken = in_container(CLONE_NEWUSER, [&] {
    std::vector<Descriptor> kept;
    if (connections_taken(daemon, kept) < 20) return 1;
    // One more namespace within: its first connection is refused.
    if (unshare(CLONE_NEWUSER) != 0) return 2;
    std::vector<Descriptor> more;
    return connections_taken(daemon, more) == 0 ? 0 : 3;
  });
  if (!taken || *taken == 2) return;
  CHECK(*taken == 0);
}

TEST_CASE("contexts that nothing measures, of however many processes and users, leave others most of a GPU") {
  if (geteuid() != 0) {
    WARN("left out: only root can start processes of other users");
    return;
  }
  const Daemon daemon;
  open_to_all(daemon);
  int ready[2];
  int end[2];
  REQUIRE(pipe2(ready, O_CLOEXEC) == 0);
  REQUIRE(pipe2(end, O_CLOEXEC) == 0);
  const Descriptor ready_here(ready[0]);
  Descriptor ready_there(ready[1]);
  const Descriptor end_there(end[0]);
  Descriptor end_here(end[1]);
  constexpr int kUsers = 4;
  constexpr int kEach = 5;
  std::vector<pid_t> all;
  for (int i = 0; i < kUsers * kEach; ++i) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      end_here = {};
      const auto user = static_cast<uid_t>(54321 + i % kUsers);
      if (setgid(user) != 0 || setuid(user) != 0) _exit(1);
      Client client(daemon.socket(), "idle", false);
      Message add{.version = protocol::kVersion, .kind = Kind::kAddGpu};
      add.body.add_gpu = {
          .uuid = uuid(1), .total_bytes = 1 << 30, .context_bytes = 1 << 30, .name = {}, .number = 0, .padding = 0};
      send_packet(client.descriptor, &add, sizeof add);
      while (receive(client.descriptor).value_or(add).kind != Kind::kGpuAdded) continue;
      char byte = 0;
      const bool done = write(ready_there.get(), "", 1) == 1 && read(end_there.get(), &byte, 1) == 0;
      _exit(done ? 0 : 2);
    }
    all.push_back(child);
  }
  ready_there = {};
  char byte = 0;
  for (std::size_t i = 0; i < all.size(); ++i) REQUIRE(read(ready_here.get(), &byte, 1) == 1);
  {
    Client ours(daemon.socket(), "ours", false);
    std::uint32_t gpu = 0;
    REQUIRE_FALSE(ours.add_gpu(1, &gpu));
    // Its own context, a sixteenth, and a quarter for all others'.
    constexpr std::uint64_t kGpu = 1 << 30;
    CHECK(ours.wait_for(
        [&](const protocol::LeasePage& page) { return page.gpus[gpu].all_context_bytes <= kGpu / 16 * 5; }));
    CHECK(reserves(ours, gpu, kGpu / 16 * 10, true));
    // And these contexts do count.
    CHECK(ours.lease->gpus[gpu].all_context_bytes >= kGpu / 16 * 3);
  }
  end_here = {};
  for (const pid_t each : all) {
    int status = 0;
    CHECK(waitpid(each, &status, 0) == each);
    CHECK(status == 0);
  }
}

TEST_CASE("no user gets more than three quarters of what the others leave") {
  server::Budget budget(64);
  const auto take_all = [&](const std::string& payer, bool all = false) {
    std::vector<server::Budget::Share> shares;
    while (auto share = budget.take(payer, all)) shares.push_back(std::move(share));
    return shares;
  };
  const auto first = take_all("a");
  CHECK(first.size() == 48);
  {
    const auto second = take_all("b");
    CHECK(second.size() == 12);
    CHECK(take_all("c").size() == 3);
    CHECK(take_all("root", true).size() == 4);
    CHECK(budget.taken() == 60);
  }
  CHECK(budget.taken() == 48);
  CHECK(take_all("b").size() == 12);
}

}  // namespace
}  // namespace rota::test
