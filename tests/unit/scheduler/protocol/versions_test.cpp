// rotad and programs of different versions. The conversations in tests/data/protocol were recorded between programs and
// a rotad of the same version (by tests/data/protocol/record). The clients' side is replayed to the current rotad, and
// the side of version 1's rotad to the current client. The offsets here are those of version 1 and never change.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <thread>

#include "runtime/turn/connection.h"
#include "scheduler/protocol/packet.h"
#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

constexpr std::size_t kPacket = 256;
constexpr std::size_t kPage = 4096;
enum : unsigned {
  kHello1 = 1,
  kGiveBack1 = 4,
  kWelcome1 = 101,
  kStatusGpu1 = 104,
  kStatusClient1 = 105,
  kStatusEnd1 = 106
};

template <typename Number>
Number at(const void* bytes, std::size_t offset) {
  Number number;
  memcpy(&number, static_cast<const char*>(bytes) + offset, sizeof number);
  return number;
}
unsigned kind_of(const std::string& packet) {
  return at<std::uint16_t>(packet.data(), 6);
}

struct Line {
  int connection = 0;
  std::string what;                                          // "<", ">", "lease", "usage" or "ends"
  std::string bytes;                                         // of a packet or a lease page
  std::vector<std::pair<std::size_t, std::uint64_t>> words;  // of a usage page
};

std::vector<Line> recorded(int version = 1) {
  std::ifstream file(CONVERSATIONS "/version" + std::to_string(version) + ".txt");
  std::vector<Line> lines;
  std::string text;
  while (std::getline(file, text)) {
    std::istringstream words(text);
    Line line;
    words >> line.connection >> line.what;
    std::string word;
    while (words >> word) {
      if (word[0] == '+') continue;
      if (line.what == "usage") {
        const std::size_t colon = word.find(':');
        line.words.emplace_back(std::stoul(word, nullptr, 16), std::stoull(word.substr(colon + 1), nullptr, 16));
        continue;
      }
      for (std::size_t i = 0; i + 1 < word.size(); i += 2) {
        line.bytes += static_cast<char>(std::stoul(word.substr(i, 2), nullptr, 16));
      }
    }
    if (line.what == "<" || line.what == ">") line.bytes.resize(kPacket);
    lines.push_back(line);
  }
  return lines;
}

// A client of version 1, as far as its bytes are concerned.
struct OldClient {
  int socket = -1;
  char* lease = nullptr;
  char* usage = nullptr;

  std::string receive() {
    char buffer[kPacket + 1];
    Descriptor pages[2];
    const ssize_t length = protocol::read_packet(socket, buffer, sizeof buffer, pages, 0);
    if (pages[1]) {
      lease = static_cast<char*>(mmap(nullptr, kPage, PROT_READ, MAP_SHARED, pages[0].get(), 0));
      usage = static_cast<char*>(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, pages[1].get(), 0));
    }
    return {buffer, static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
  }
};

// All bytes except those that differ from run to run: a client's number, and rotad's pid.
std::string comparable(std::string packet) {
  if (kind_of(packet) == kWelcome1) {
    packet.replace(8, 4, 4, '\0');
    packet.replace(16, 8, 8, '\0');
  }
  return packet;
}

TEST_CASE("programs of older versions are served as they were, byte for byte") {
  const int version = GENERATE(1, 2);
  const Daemon daemon({"--mode", "exclusive", "--quantum", "200ms"});
  std::map<int, OldClient> clients;
  int packets = 0;
  int grants = 0;
  for (const Line& line : recorded(version)) {
    INFO("version " << version << ", packet " << packets << ", connection " << line.connection << ", " << line.what);
    OldClient& client = clients[line.connection];
    if (line.what == ">") {
      if (client.socket < 0) client.socket = connect_to(daemon.socket());
      if (kind_of(line.bytes) == kGiveBack1) {
        // It gives back what its page says that it holds, and another client waits.
        const bool granted = eventually([&] {
          return at<std::uint32_t>(client.lease, 12) == at<std::uint32_t>(line.bytes.data(), 8) &&
                 at<std::uint64_t>(client.lease, 16) == 1 && at<std::uint32_t>(client.lease, 24) != 0 &&
                 at<std::uint64_t>(client.lease, 32) != 0;
        });
        REQUIRE(granted);
        ++grants;
      }
      send_packet(client.socket, line.bytes.data(), line.bytes.size());
      ++packets;
    } else if (line.what == "<" && (kind_of(line.bytes) == kStatusGpu1 || kind_of(line.bytes) == kStatusClient1)) {
      // The number of rows depends on when the request came; they come before the end row.
    } else if (line.what == "<") {
      std::string packet = client.receive();
      while (packet.size() == kPacket && (kind_of(packet) == kStatusGpu1 || kind_of(packet) == kStatusClient1)) {
        CHECK(packet.substr(0, 6) == line.bytes.substr(0, 6));
        const std::string name = packet.c_str() + 64;
        const bool of_gpu = kind_of(packet) == kStatusGpu1;
        CHECK((of_gpu ? name == "NVIDIA H200" : name == "memhog" || name == "saxpy"));
        if (kind_of(packet) == kStatusClient1) CHECK(at<std::int32_t>(packet.data(), 12) == getpid());
        packet = client.receive();
      }
      REQUIRE(packet.size() == kPacket);
      if (kind_of(line.bytes) == kStatusEnd1) {
        CHECK(packet.substr(0, 8) == line.bytes.substr(0, 8));
        CHECK(at<std::uint64_t>(packet.data(), 8) == static_cast<std::uint64_t>(daemon.pid()));
        CHECK(at<std::uint64_t>(packet.data(), 16) == 200'000'000);
        CHECK(at<std::uint32_t>(packet.data(), 32) == 1);  // exclusive
      } else {
        CHECK(comparable(packet) == comparable(line.bytes));
      }
      ++packets;
    } else if (line.what == "lease") {
      const char* page = client.lease;
      REQUIRE(page != nullptr);
      CHECK(memcmp(page, line.bytes.data(), 8) == 0);  // magic and version
    } else if (line.what == "usage") {
      for (const auto& [offset, value] : line.words) memcpy(client.usage + offset, &value, sizeof value);
    } else {
      close(client.socket);
      client.socket = -1;
    }
  }
  CHECK(packets > 50);
  CHECK(grants == 7);
  for (const auto& [number, client] : clients) {
    if (client.socket >= 0) close(client.socket);
    if (client.lease != nullptr) munmap(client.lease, kPage);
    if (client.usage != nullptr) munmap(client.usage, kPage);
  }
}

TEST_CASE("a program of version 1 says what it uses where rotad looks") {
  const Daemon daemon;
  OldClient client;
  client.socket = connect_to(daemon.socket());
  std::string used;
  for (const Line& line : recorded()) {
    if (line.connection != 2 || line.what != ">" || kind_of(line.bytes) > 2) continue;
    send_packet(client.socket, line.bytes.data(), line.bytes.size());
    REQUIRE(client.receive().size() == kPacket);
  }
  REQUIRE(client.usage != nullptr);
  const std::uint64_t bytes = 12345678;
  memcpy(client.usage + 8, &bytes, sizeof bytes);
  CHECK(eventually([&] { return status(daemon.socket()).gpus.at(0).used_bytes == bytes; }));
  close(client.socket);
}

// The rotad of version 1: refuses what it refused, and answers what it answered.
class OldRotad {
 public:
  OldRotad() : path_(folder_ / "rotad.sock") {
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(listener_, 1) == 0);
    for (int& page : pages_) {
      page = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
      REQUIRE(ftruncate(page, kPage) == 0);
      REQUIRE(pwrite(page, "ROTA\1\0\0\0", 8, 0) == 8);
      REQUIRE(fcntl(page, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    }
    thread_ = std::thread([this] { serve(); });
  }
  ~OldRotad() {
    end();
    for (const int descriptor : {listener_, pages_[0], pages_[1]}) close(descriptor);
  }
  // After its client has left.
  void end() {
    if (thread_.joinable()) thread_.join();
  }
  const std::string& path() const { return path_; }
  std::vector<unsigned> kinds;  // what was received; read after end()
  std::string problem;

 private:
  void serve() {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    char buffer[kPacket + 1];
    ssize_t length;
    while ((length = recv(client, buffer, sizeof buffer, 0)) > 0) {
      if (length != kPacket) problem = "a message of " + std::to_string(length) + " bytes; rota's have 256";
      if (at<std::uint32_t>(buffer, 0) != 0x41544f52) problem = "this is not a rota message";
      if (at<std::uint16_t>(buffer, 4) != 1) problem = "this rotad speaks version 1 of the protocol";
      const unsigned kind = at<std::uint16_t>(buffer, 6);
      if (kind < 1 || kind > 7) problem = "a message of a kind which clients do not send";
      if (!problem.empty()) break;
      kinds.push_back(kind);
      for (const Line& line : recorded()) {
        if (line.connection != 2 || line.what != "<" || kind_of(line.bytes) != 100 + kind || kind > 2) continue;
        answer(client, line.bytes, kind == kHello1);
      }
    }
    close(client);
  }
  void answer(int client, const std::string& packet, bool with_pages) {
    const auto pages = with_pages ? std::span<const int>(pages_) : std::span<const int>();
    protocol::write_packet(client, packet.data(), packet.size(), pages, 0);
  }

  TemporaryFolder folder_;
  std::string path_;
  int listener_ = -1;
  int pages_[2] = {-1, -1};
  std::thread thread_;
};

TEST_CASE("the client of today is served by a rotad of version 1") {
  OldRotad old;
  setenv("ROTA_SOCKET", old.path().c_str(), 1);
  auto attempt = turn::Connection::open();
  unsetenv("ROTA_SOCKET");
  INFO(attempt.reason);
  REQUIRE(attempt.connection);
  CHECK(attempt.connection->welcome().quantum_ns == 200'000'000);
  CHECK(attempt.connection->welcome().mode == protocol::Mode::kExclusive);
  CHECK(attempt.connection->send(message(protocol::Kind::kAddGpu)));
  protocol::Message answer;
  REQUIRE(eventually([&] { return attempt.connection->receive(answer) == turn::Connection::Received::kMessage; }));
  CHECK(answer.kind == protocol::Kind::kGpuAdded);
  CHECK(answer.body.gpu_added.index == 0);
  for (const auto kind : {protocol::Kind::kWant, protocol::Kind::kUsage, protocol::Kind::kGiveBack}) {
    CHECK(attempt.connection->send(message(kind)));
  }
  attempt.connection.reset();
  old.end();
  CHECK(old.problem == "");
  CHECK(old.kinds == std::vector<unsigned>{1, 2, 3, 5, 4});
}

TEST_CASE("the client and the rotad of today speak the newest version") {
  const Daemon daemon;
  setenv("ROTA_SOCKET", daemon.socket().c_str(), 1);
  auto attempt = turn::Connection::open();
  unsetenv("ROTA_SOCKET");
  INFO(attempt.reason);
  REQUIRE(attempt.connection);
  protocol::Message add = message(protocol::Kind::kAddGpu);
  add.body.add_gpu.total_bytes = 1 << 20;
  CHECK(attempt.connection->send(add));
  protocol::Message answer;
  REQUIRE(eventually([&] { return attempt.connection->receive(answer) == turn::Connection::Received::kMessage; }));
  CHECK(answer.kind == protocol::Kind::kGpuAdded);
  CHECK(answer.version == protocol::kVersion);
}

TEST_CASE("a newer program is served in the newest version that rotad speaks, its unknown fields and kinds ignored") {
  const Daemon daemon;
  const int descriptor = connect_to(daemon.socket());
  protocol::Message hello = message(protocol::Kind::kHello);
  hello.version = 2;
  hello.body.hello.newest_version = 9;
  std::string longer(reinterpret_cast<const char*>(&hello), sizeof hello);
  longer += std::string(100, 'n');
  send_packet(descriptor, longer.data(), longer.size());
  const auto welcome = receive(descriptor);
  REQUIRE(welcome);
  CHECK(welcome->kind == protocol::Kind::kWelcome);
  CHECK(welcome->version == protocol::kVersion);
  protocol::Message unknown = message(static_cast<protocol::Kind>(77));
  unknown.version = 2;
  send_packet(descriptor, &unknown, sizeof unknown);
  protocol::Message add = message(protocol::Kind::kAddGpu);
  add.version = 2;
  add.body.add_gpu.total_bytes = 1 << 20;
  // A field that it leaves out is zero: here the name.
  send_packet(descriptor, &add, protocol::kHeaderBytes + offsetof(protocol::AddGpu, name));
  const auto added = receive(descriptor);
  REQUIRE(added);
  CHECK(added->kind == protocol::Kind::kGpuAdded);
  close(descriptor);
}

TEST_CASE("who does not hold a GPU is asked for room there, and not again for what has gone meanwhile") {
  constexpr std::uint64_t kMega = 1 << 20;
  const Daemon daemon;
  setenv("ROTA_SOCKET", daemon.socket().c_str(), 1);
  auto attempt = turn::Connection::open();
  unsetenv("ROTA_SOCKET");
  REQUIRE(attempt.connection);
  turn::Connection& rests = *attempt.connection;
  CHECK(rests.asks_for_room());
  protocol::Message add = message(protocol::Kind::kAddGpu);
  add.body.add_gpu.uuid = uuid(1);
  add.body.add_gpu.total_bytes = 1024 * kMega;
  REQUIRE(rests.send(add));
  protocol::Message answer;
  REQUIRE(eventually([&] { return rests.receive(answer) == turn::Connection::Received::kMessage; }));
  rests.usage()->device_bytes[0] = rests.usage()->resident_bytes[0] = 700 * kMega;
  Client holds(daemon.socket(), "holder");
  std::uint32_t gpu = 0;
  REQUIRE_FALSE(holds.add_gpu(1, &gpu));
  holds.use(gpu, 500 * kMega);
  holds.want(1);
  REQUIRE(holds.wait_for_grant());
  REQUIRE(eventually([&] { return rests.to_clear(0) != 0; }));
  const std::uint64_t bytes = rests.to_clear(0);
  CHECK(rests.lease().grant == 0);
  CHECK(rests.lease().in_the_way == 1);
  // Some has left, and rotad may not have seen that yet: what was asked for is less by that amount either way.
  rests.usage()->resident_bytes[0] = 690 * kMega;
  CHECK(rests.to_clear(0) == bytes - 10 * kMega);
  REQUIRE(eventually([&] { return rests.page()->clear_from_bytes[0] == 690 * kMega; }));
  CHECK(eventually([&] { return rests.to_clear(0) == bytes - 10 * kMega; }));
  rests.usage()->resident_bytes[0] = 700 * kMega - bytes;
  CHECK(rests.to_clear(0) == 0);
  CHECK(rests.lease().in_the_way == 0);
}

TEST_CASE("a program that speaks no version of rotad's is told which those are") {
  const Daemon daemon;
  const int descriptor = connect_to(daemon.socket());
  protocol::Message hello = message(protocol::Kind::kHello);
  hello.version = protocol::kVersion + 1;
  hello.body.hello.newest_version = protocol::kVersion + 5;
  send_packet(descriptor, &hello, sizeof hello);
  const auto answer = receive(descriptor);
  REQUIRE(answer);
  CHECK(answer->kind == protocol::Kind::kRefused);
  CHECK(std::string(answer->body.refused.text).find("versions 1 to " + std::to_string(protocol::kVersion)) !=
        std::string::npos);
  CHECK_FALSE(receive(descriptor));
  close(descriptor);
}

}  // namespace
}  // namespace rota::test
