// rotad introduces a client that has a handle to the client that created it, if both belong to one trust domain.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "scheduler/protocol/packet.h"
#include "tests/unit/scheduler/server/processes.h"

using namespace rota;
using namespace rota::test;
using protocol::Kind;
using protocol::Message;

namespace {

constexpr protocol::ProcessNumber kNumber{{7, 8}};

void announce(const Client& client, const protocol::ProcessNumber& number) {
  Message told = message(Kind::kAnnounce);
  told.body.announce = {.number = number};
  send_packet(client.descriptor, &told, protocol::bytes_of(told.kind));
}

void ask(const Client& client, const protocol::ProcessNumber& number, std::uint32_t request) {
  Message asked = message(Kind::kIntroduce);
  asked.body.introduce = {.number = number, .request = request, .padding = 0};
  send_packet(client.descriptor, &asked, protocol::bytes_of(asked.kind));
}

// Returns once rotad has read everything that it sent before.
void is_heard(Client& client) {
  REQUIRE_FALSE(client.add_gpu(1));
}

// What the next message says, which is about an introduction, and the socket that came with it.
std::pair<std::uint32_t, Descriptor> introduced(const Client& client) {
  Descriptor socket;
  const auto message = receive(client.descriptor, {&socket, 1});
  REQUIRE(message);
  REQUIRE(message->kind == Kind::kIntroduced);
  return {message->body.introduced.request, std::move(socket)};
}

}  // namespace

TEST_CASE("a client gets a socket to the one that has announced the number that it asks for") {
  const Daemon daemon;
  Client exporter(daemon.socket());
  Client opener(daemon.socket());
  announce(exporter, kNumber);
  is_heard(exporter);
  ask(opener, kNumber, 5);
  const auto [request, socket] = introduced(opener);
  CHECK(request == 5);
  REQUIRE(socket);
  const auto [of_exporter, other] = introduced(exporter);
  CHECK(of_exporter == 0);
  REQUIRE(other);
  REQUIRE(protocol::write_packet(socket.get(), "hello", 5, {}, 0) == 5);
  char heard[8] = {};
  REQUIRE(protocol::read_packet(other.get(), heard, sizeof heard, {}, 0) == 5);
  CHECK(std::string(heard) == "hello");
}

TEST_CASE("a client that asks for a number that nobody has announced gets an answer without a socket") {
  const Daemon daemon;
  Client exporter(daemon.socket());
  Client opener(daemon.socket());
  announce(exporter, kNumber);
  is_heard(exporter);
  for (const protocol::ProcessNumber& number : {protocol::ProcessNumber{{7, 9}}, protocol::ProcessNumber{}}) {
    ask(opener, number, 6);
    const auto [request, socket] = introduced(opener);
    CHECK(request == 6);
    CHECK_FALSE(socket);
  }
}

TEST_CASE("a client has the number that it announced last, also if another one announces the same") {
  const Daemon daemon;
  constexpr protocol::ProcessNumber kOther{{7, 9}};
  Client exporter(daemon.socket());
  Client opener(daemon.socket());
  {
    Client another(daemon.socket());
    announce(another, kNumber);
    is_heard(another);
    announce(exporter, kOther);
    announce(exporter, kNumber);
    is_heard(exporter);
  }
  ask(opener, kOther, 5);
  CHECK_FALSE(introduced(opener).second);
  CHECK(eventually([&] {  // the other one may not have ended yet
    ask(opener, kNumber, 6);
    return static_cast<bool>(introduced(opener).second);
  }));
  CHECK(introduced(exporter).second);
}

TEST_CASE("nobody is introduced to itself, nor to a client that has gone") {
  const Daemon daemon;
  Client opener(daemon.socket());
  announce(opener, kNumber);
  ask(opener, kNumber, 1);
  CHECK_FALSE(introduced(opener).second);
  {
    Client exporter(daemon.socket());
    announce(exporter, {{1, 2}});
    is_heard(exporter);
  }
  ask(opener, {{1, 2}}, 2);
  CHECK_FALSE(introduced(opener).second);
}

TEST_CASE("nobody is introduced to a client of another user namespace, but where all programs trust each other") {
  const bool machine = GENERATE(false, true);
  const Daemon daemon(machine ? std::vector<std::string>{"--trust", "machine"} : std::vector<std::string>{});
  int said[2];
  int asked[2];
  REQUIRE(pipe(said) == 0);
  REQUIRE(pipe(asked) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    close(asked[1]);
    char word = 'n';
    if (unshare(CLONE_NEWUSER) != 0) _exit(write(said[1], &word, 1) == 1 ? 0 : 1);
    try {
      Client exporter(daemon.socket());
      announce(exporter, kNumber);
      is_heard(exporter);
      word = 'y';
      if (write(said[1], &word, 1) != 1) _exit(1);
      _exit(read(asked[0], &word, 1) == 0 ? 0 : 1);
    } catch (...) {
      _exit(1);
    }
  }
  close(said[1]);
  close(asked[0]);
  char word = 0;
  const bool came = read(said[0], &word, 1) == 1;
  if (came && word == 'y') {
    Client opener(daemon.socket());
    ask(opener, kNumber, 9);
    CHECK(static_cast<bool>(introduced(opener).second) == machine);
  } else if (came) {
    WARN("left out: this machine does not permit user namespaces");
  }
  CHECK(came);
  close(asked[1]);
  close(said[0]);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
