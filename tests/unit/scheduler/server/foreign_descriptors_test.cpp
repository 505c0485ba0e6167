// Descriptors that take long to close, sent to rotad in every way: nobody else notices.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "scheduler/protocol/packet.h"
#include "scheduler/server/bare_packet.h"
#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

using protocol::Kind;
using protocol::Message;

// A TCP connection on the loopback device with data that its receiver does not read: the process that closes the last
// descriptor of `sender` waits ten minutes for that, far longer than anybody waits in a test. It ends with this object.
struct Lingering {
  Lingering() {
    const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const place = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(bind(listener.get(), place, size) == 0);
    REQUIRE(listen(listener.get(), 1) == 0);
    REQUIRE(getsockname(listener.get(), place, &size) == 0);
    sender = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(connect(sender.get(), place, sizeof address) == 0);
    receiver = Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    REQUIRE(receiver);
    const std::vector<char> data(1 << 16);
    while (send(sender.get(), data.data(), data.size(), MSG_DONTWAIT) > 0) continue;
    const linger long_wait{.l_onoff = 1, .l_linger = 600};
    REQUIRE(setsockopt(sender.get(), SOL_SOCKET, SO_LINGER, &long_wait, sizeof long_wait) == 0);
  }
  // Its data goes nowhere, so that nobody waits for it any longer.
  ~Lingering() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(receiver.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    if (sender) setsockopt(sender.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  Lingering(const Lingering&) = delete;
  Lingering& operator=(const Lingering&) = delete;

  Descriptor receiver;
  Descriptor sender;
};

// rotad does not run while this exists, so that it finds everything that was sent meanwhile.
struct Pause {
  explicit Pause(const Daemon& daemon) : pid(daemon.pid()) { kill(pid, SIGSTOP); }
  ~Pause() { kill(pid, SIGCONT); }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
  pid_t pid;
};

void send_with(int socket, const Message& message, std::span<const int> descriptors) {
  REQUIRE(protocol::write_packet(socket, &message, sizeof message, descriptors, 0) == sizeof message);
}

Message handed_over() {
  Message message{.version = protocol::kVersion, .kind = Kind::kHandOver};
  message.body.extent = {.gpu = 0, .padding = 0, .bytes = 128 << 20};
  return message;
}

// A socket whose queue holds this descriptor, and nobody else has it.
Descriptor wrapped(Descriptor descriptor) {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  const Descriptor other(pair[1]);
  const int inner[] = {descriptor.get()};
  REQUIRE(protocol::write_packet(other.get(), "", 1, inner, 0) == 1);
  return Descriptor(pair[0]);
}

std::size_t threads_of(pid_t pid) {
  const std::filesystem::directory_iterator threads("/proc/" + std::to_string(pid) + "/task");
  return static_cast<std::size_t>(std::distance(begin(threads), end(threads)));
}

TEST_CASE("a descriptor that takes long to close does not stop rotad, however it is sent") {
  const bool nested = GENERATE(false, true);
  enum class How { kBeforeHello, kUnreadAtTheEnd, kEmptyPacket, kHandedOver, kBesideMemory, kUnknownKind, kDeadClient };
  const How how = GENERATE(How::kBeforeHello, How::kUnreadAtTheEnd, How::kEmptyPacket, How::kHandedOver,
                           How::kBesideMemory, How::kUnknownKind, How::kDeadClient);
  CAPTURE(static_cast<int>(how), nested);
  const Daemon daemon;
  Lingering lingering;
  Descriptor evil = nested ? wrapped(std::move(lingering.sender)) : std::move(lingering.sender);
  const int sent[] = {evil.get()};
  Descriptor raw(connect_to(daemon.socket()));
  std::optional<Client> client;
  switch (how) {
    case How::kBeforeHello: {
      // Without the pause, rotad could have dropped it before `evil` is closed here.
      const Pause pause(daemon);
      send_with(raw.get(), message(Kind::kStatus), sent);
      evil = Descriptor();
      break;
    }
    case How::kUnreadAtTheEnd: {
      const Pause pause(daemon);
      send_packet(raw.get(), "garbage", 7);  // rotad hangs up, and does not read the next one
      send_with(raw.get(), message(Kind::kStatus), sent);
      evil = Descriptor();
      break;
    }
    case How::kEmptyPacket: {
      const Pause pause(daemon);
      send_packet(raw.get(), "", 0);
      REQUIRE(protocol::write_packet(raw.get(), "", 0, sent, 0) == 0);
      evil = Descriptor();
      raw = Descriptor();
      break;
    }
    case How::kHandedOver:
    case How::kBesideMemory:
    case How::kUnknownKind: {
      client.emplace(daemon.socket(), "hostile", false);
      REQUIRE_FALSE(client->add_gpu(1));
      const Pause pause(daemon);
      const Descriptor memory(memfd_create("memory", MFD_CLOEXEC));
      const int both[] = {memory.get(), evil.get()};
      Message odd = handed_over();
      if (how == How::kUnknownKind) odd.kind = static_cast<Kind>(90);
      send_with(client->descriptor, odd, how == How::kBesideMemory ? std::span<const int>(both) : sent);
      evil = Descriptor();
      break;
    }
    case How::kDeadClient: {
      const Pause pause(daemon);
      const pid_t child = fork();
      if (child == 0) {
        const Descriptor own(connect_to(daemon.socket()));
        const Message hello = message(Kind::kHello);
        send_packet(own.get(), &hello, sizeof hello);
        const Message evil_one = handed_over();
        _exit(protocol::write_packet(own.get(), &evil_one, sizeof evil_one, sent, 0) > 0 ? 0 : 1);
      }
      int status = 1;
      waitpid(child, &status, 0);
      REQUIRE(status == 0);
      evil = Descriptor();
      break;
    }
  }
  REQUIRE_FALSE(evil);
  for (int i = 0; i < 3; ++i) CHECK(serves(daemon));
  CHECK(status(daemon.socket()).daemon.pid == static_cast<std::uint64_t>(daemon.pid()));
}

TEST_CASE("hundreds of descriptors that take long to close cost rotad no threads, and others are served") {
  const Daemon daemon;
  Lingering lingering;
  const int sent[] = {lingering.sender.get()};
  std::vector<Descriptor> sockets;
  const std::size_t threads = threads_of(daemon.pid());
  for (int i = 0; i < 300; ++i) {
    sockets.emplace_back(connect_to(daemon.socket()));
    send_with(sockets.back().get(), message(Kind::kStatus), sent);
  }
  lingering.sender = Descriptor();
  sockets.clear();
  CHECK(serves(daemon));
  CHECK(threads_of(daemon.pid()) <= threads + 1);  // the one that asks NVML
}

TEST_CASE("rotad ends at once although connections hold descriptors that take long to close") {
  Daemon daemon;
  Lingering lingering;
  const int sent[] = {lingering.sender.get()};
  const Descriptor read(connect_to(daemon.socket()));
  send_with(read.get(), message(Kind::kStatus), sent);
  CHECK(serves(daemon));
  Descriptor unread;
  {
    const Pause pause(daemon);
    unread = Descriptor(connect_to(daemon.socket()));
    send_with(unread.get(), message(Kind::kStatus), sent);
    lingering.sender = Descriptor();
    kill(daemon.pid(), SIGTERM);
  }
  CHECK(eventually([&] { return !daemon.alive(); }));
}

TEST_CASE("a sender of such descriptors is told, and one that has said hello goes on") {
  const Daemon daemon;
  const Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int sent[] = {nothing.get()};
  const Descriptor stranger(connect_to(daemon.socket()));
  send_with(stranger.get(), message(Kind::kStatus), sent);
  // Once rotad has closed the connection with a packet that nobody has read, the kernel reports that before the answer.
  auto refused = receive(stranger.get());
  if (!refused) refused = receive(stranger.get());
  REQUIRE(refused);
  CHECK(refused->kind == Kind::kRefused);
  CHECK(std::string(refused->body.refused.text).find("before hello") != std::string::npos);
  CHECK_FALSE(receive(stranger.get()));
  Client client(daemon.socket(), "odd", false);
  send_with(client.descriptor, handed_over(), sent);
  CHECK_FALSE(client.add_gpu(1));
}

TEST_CASE("when the processes that handle descriptors are killed, others take their place") {
  const Daemon daemon;
  const std::string children =
      "/proc/" + std::to_string(daemon.pid()) + "/task/" + std::to_string(daemon.pid()) + "/children";
  if (access(children.c_str(), R_OK) != 0) {
    WARN("left out: this kernel does not list a process's children");
    return;
  }
  pid_t keeper = 0;
  std::ifstream(children) >> keeper;
  REQUIRE(keeper > 0);
  kill(keeper, SIGKILL);
  Client client(daemon.socket(), "odd", false);
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  const Descriptor reads(ends[0]);
  Descriptor writes(ends[1]);
  const int sent[] = {writes.get()};
  send_with(client.descriptor, handed_over(), sent);
  writes = Descriptor();
  char byte = 0;
  CHECK(eventually([&] { return read(reads.get(), &byte, 1) == 0; }));
  CHECK(serves(daemon));
}

TEST_CASE("a packet with descriptors is seen before it is taken, and an empty one is not taken for the end") {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  const Descriptor ours(pair[0]);
  const Descriptor theirs(pair[1]);
  const Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int sent[] = {nothing.get()};
  using server::BarePacket;
  char bytes[2];
  CHECK(server::read_bare(ours.get(), bytes, sizeof bytes).kind == BarePacket::Kind::kNone);
  send_packet(theirs.get(), "abc", 3);
  protocol::write_packet(theirs.get(), "defg", 4, sent, 0);
  BarePacket packet = server::read_bare(ours.get(), bytes, sizeof bytes);
  CHECK(packet.kind == BarePacket::Kind::kPacket);
  CHECK(packet.length == 3);
  CHECK(std::string(bytes, 2) == "ab");
  for (int again = 0; again < 2; ++again) {
    packet = server::read_bare(ours.get(), bytes, sizeof bytes);
    CHECK(packet.kind == BarePacket::Kind::kWithDescriptors);
    CHECK(packet.length == 4);
    CHECK(std::string(bytes, 2) == "de");
  }
  CHECK_FALSE(server::end_and_empty(ours.get()));
  recv(ours.get(), nullptr, 0, 0);
  CHECK(server::end_and_empty(ours.get()));
}

TEST_CASE("what nobody has read is taken out, packets without content included") {
  const bool closed = GENERATE(false, true);
  const bool evil = GENERATE(false, true);
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  const Descriptor ours(pair[0]);
  Descriptor theirs(pair[1]);
  const Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int sent[] = {nothing.get()};
  for (const char* text : {"", "a", "", ""}) send_packet(theirs.get(), text, strlen(text));
  if (evil) protocol::write_packet(theirs.get(), "", 0, sent, 0);
  send_packet(ours.get(), "b", 1);
  if (closed) theirs = Descriptor();
  CHECK(server::end_and_empty(ours.get()) == !evil);
  if (closed) return;
  char byte = 0;
  CHECK(recv(theirs.get(), &byte, 1, 0) == 1);  // is still told what was sent to it
  CHECK(recv(theirs.get(), &byte, 1, 0) == 0);
}

}  // namespace
}  // namespace rota::test
