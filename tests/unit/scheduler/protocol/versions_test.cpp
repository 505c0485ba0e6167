// rotad and programs of different versions. The conversation in tests/data/protocol was recorded between programs and a
// rotad of the same version (by tests/data/protocol/record). The clients' side is replayed to the current rotad. The
// offsets here are those of that version and never change.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "runtime/client/connection.h"
#include "scheduler/protocol/packet.h"
#include "tests/unit/scheduler/server/processes.h"

namespace rota::test {
namespace {

constexpr std::size_t kPage = 20480;
constexpr std::size_t kRecord = 256;  // of GPU 0, in either page
enum : unsigned {
  kGiveBack9 = 4,
  kWelcome9 = 101,
  kStatusRows9 = 120,
  kStatusDaemon9 = 125,
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
bool is_row(const std::string& packet) {
  return kind_of(packet) >= kStatusRows9 && kind_of(packet) < kStatusDaemon9;
}

struct Line {
  int connection = 0;
  std::string what;                                          // "<", ">", "usage" or "ends"
  std::string bytes;                                         // of a packet
  std::vector<std::pair<std::size_t, std::uint64_t>> words;  // of a usage page
};

std::vector<Line> recorded() {
  std::ifstream file(CONVERSATIONS "/version9.txt");
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
    lines.push_back(line);
  }
  return lines;
}

// A client of that version, as far as its bytes are concerned.
struct OldClient {
  int socket = -1;
  char* lease = nullptr;
  char* usage = nullptr;

  std::string receive() {
    char buffer[1024];
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
  if (kind_of(packet) == kWelcome9) {
    packet.replace(8, 4, 4, '\0');
    packet.replace(16, 8, 8, '\0');
  }
  return packet;
}

TEST_CASE("programs of version 9 are served as they were, byte for byte") {
  const Daemon daemon({"--mode", "exclusive", "--quantum", "200ms"});
  std::map<int, OldClient> clients;
  int packets = 0;
  int grants = 0;
  for (const Line& line : recorded()) {
    INFO("packet " << packets << ", connection " << line.connection << ", " << line.what);
    OldClient& client = clients[line.connection];
    if (line.what == ">") {
      if (client.socket < 0) client.socket = connect_to(daemon.socket());
      if (kind_of(line.bytes) == kGiveBack9) {
        // It gives back what its page says that it holds, and another client waits.
        const bool granted = eventually([&] {
          return at<std::uint32_t>(client.lease, kRecord) == at<std::uint32_t>(line.bytes.data(), 8) &&
                 at<std::uint32_t>(client.lease, kRecord + 4) != 0 && at<std::uint64_t>(client.lease, kRecord + 8) != 0;
        });
        REQUIRE(granted);
        ++grants;
      }
      send_packet(client.socket, line.bytes.data(), line.bytes.size());
      ++packets;
    } else if (line.what == "<" && is_row(line.bytes)) {
      // The number of rows depends on when the request came; they come before the last row.
    } else if (line.what == "<") {
      std::string packet = client.receive();
      while (packet.size() >= 8 && is_row(packet)) packet = client.receive();
      REQUIRE(packet.size() == line.bytes.size());
      if (kind_of(line.bytes) == kStatusDaemon9) {
        CHECK(packet.substr(0, 8) == line.bytes.substr(0, 8));
        CHECK(at<std::uint64_t>(packet.data(), 8) == static_cast<std::uint64_t>(daemon.pid()));
        CHECK(at<std::uint64_t>(packet.data(), 16) == 200'000'000);
        CHECK(at<std::uint32_t>(packet.data(), 32) == 1);  // exclusive
      } else {
        CHECK(comparable(packet) == comparable(line.bytes));
      }
      ++packets;
    } else if (line.what == "usage") {
      for (const auto& [offset, value] : line.words) memcpy(client.usage + offset, &value, sizeof value);
    } else {
      close(client.socket);
      client.socket = -1;
    }
  }
  CHECK(packets > 50);
  CHECK(grants >= 4);
  for (const auto& [number, client] : clients) {
    if (client.socket >= 0) close(client.socket);
    if (client.lease != nullptr) munmap(client.lease, kPage);
    if (client.usage != nullptr) munmap(client.usage, kPage);
  }
}

TEST_CASE("the client and the rotad of today speak the newest version") {
  const Daemon daemon;
  setenv("ROTA_SOCKET", daemon.socket().c_str(), 1);
  auto attempt = client::Connection::open();
  unsetenv("ROTA_SOCKET");
  INFO(attempt.reason);
  REQUIRE(attempt.connection);
  protocol::Message add = message(protocol::Kind::kAddGpu);
  add.body.add_gpu.total_bytes = 1 << 20;
  CHECK(attempt.connection->send(add));
  protocol::Message answer;
  REQUIRE(eventually([&] { return attempt.connection->receive(answer) == client::Connection::Received::kMessage; }));
  CHECK(answer.kind == protocol::Kind::kGpuAdded);
  CHECK(answer.version == protocol::kVersion);
}

TEST_CASE("a newer program is served in the newest version that rotad speaks, its unknown fields and kinds ignored") {
  const Daemon daemon;
  const int descriptor = connect_to(daemon.socket());
  protocol::Message hello = message(protocol::Kind::kHello);
  hello.body.hello.newest_version = protocol::kVersion + 3;
  std::string longer(reinterpret_cast<const char*>(&hello), sizeof hello);
  longer += std::string(100, 'n');
  send_packet(descriptor, longer.data(), longer.size());
  const auto welcome = receive(descriptor);
  REQUIRE(welcome);
  CHECK(welcome->kind == protocol::Kind::kWelcome);
  CHECK(welcome->version == protocol::kVersion);
  protocol::Message unknown = message(static_cast<protocol::Kind>(77));
  send_packet(descriptor, &unknown, sizeof unknown);
  protocol::Message add = message(protocol::Kind::kAddGpu);
  add.body.add_gpu.total_bytes = 1 << 20;
  // A field that it leaves out is zero: here the name.
  send_packet(descriptor, &add, protocol::kHeaderBytes + offsetof(protocol::AddGpu, name));
  const auto added = receive(descriptor);
  REQUIRE(added);
  CHECK(added->kind == protocol::Kind::kGpuAdded);
  close(descriptor);
}

TEST_CASE(
    "a client that does not hold a GPU is asked to evict there, and not again for what it has evicted meanwhile") {
  constexpr std::uint64_t kMega = 1 << 20;
  const Daemon daemon;
  setenv("ROTA_SOCKET", daemon.socket().c_str(), 1);
  auto attempt = client::Connection::open();
  unsetenv("ROTA_SOCKET");
  REQUIRE(attempt.connection);
  client::Connection& rests = *attempt.connection;
  protocol::Message add = message(protocol::Kind::kAddGpu);
  add.body.add_gpu.uuid = uuid(1);
  add.body.add_gpu.total_bytes = 1024 * kMega;
  REQUIRE(rests.send(add));
  protocol::Message answer;
  REQUIRE(eventually([&] { return rests.receive(answer) == client::Connection::Received::kMessage; }));
  rests.usage()->gpus[0].device_bytes = rests.usage()->gpus[0].resident_bytes = 700 * kMega;
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
  rests.usage()->gpus[0].resident_bytes = 690 * kMega;
  CHECK(rests.to_clear(0) == bytes - 10 * kMega);
  REQUIRE(eventually([&] { return rests.gpu(0).clear_from_bytes == 690 * kMega; }));
  CHECK(eventually([&] { return rests.to_clear(0) == bytes - 10 * kMega; }));
  rests.usage()->gpus[0].resident_bytes = 700 * kMega - bytes;
  CHECK(rests.to_clear(0) == 0);
  CHECK(rests.lease().in_the_way == 0);
}

TEST_CASE("a program that speaks no version of rotad's is told which those are") {
  const Daemon daemon;
  const int descriptor = connect_to(daemon.socket());
  protocol::Message hello = message(protocol::Kind::kHello);
  hello.version = GENERATE(std::uint16_t{1}, protocol::kVersion + 1);
  hello.body.hello.newest_version = hello.version;
  send_packet(descriptor, &hello, sizeof hello);
  const auto answer = receive(descriptor);
  REQUIRE(answer);
  CHECK(answer->kind == protocol::Kind::kRefused);
  CHECK(std::string(answer->body.refused.text).find("version " + std::to_string(protocol::kVersion) + " of") !=
        std::string::npos);
  CHECK_FALSE(receive(descriptor));
  close(descriptor);
}

}  // namespace
}  // namespace rota::test
