// The decoder by itself, with very many random messages: every result is within bounds.
#include "scheduler/server/decode.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <random>

namespace rota::server {
namespace {

using protocol::Kind;
using protocol::Message;

TEST_CASE("what the decoder lets through is terminated, printable and within bounds") {
  std::mt19937 random(2024);
  int passed = 0;
  for (int i = 0; i < 200'000; ++i) {
    Message message;
    for (std::uint8_t& byte : message.body.bytes) byte = static_cast<std::uint8_t>(random());
    message.kind = static_cast<Kind>(random() % 10);
    message.version = protocol::kVersion;
    if (random() % 16 == 0) message.magic ^= 1U << random() % 32;
    if (random() % 16 == 0) message.version = static_cast<std::uint16_t>(random());
    // On the heap, with exactly this length, so that a sanitizer notices a read past its end.
    const std::size_t length = random() % 8 == 0 ? random() % 1100 : sizeof message;
    const std::unique_ptr<std::uint8_t[]> bytes(new std::uint8_t[length == 0 ? 1 : length]);
    memcpy(bytes.get(), &message, std::min(length, sizeof message));
    const auto result = decode(bytes.get(), length);
    const bool sound = length >= protocol::kHeaderBytes && message.magic == protocol::kMagic &&
                       message.version >= protocol::kOldestVersion && message.version <= protocol::kVersion &&
                       length <= protocol::kMaxMessageBytes;
    if (!sound && result) FAIL("an unsound message passed");
    if (!result) {
      if (result.error().text.empty() || result.error().text.find('\n') != std::string::npos)
        FAIL("an error without a line of text");
      continue;
    }
    ++passed;
    const char* name = nullptr;
    if (result->kind == Kind::kHello) name = result->body.hello.name;
    if (result->kind == Kind::kAddGpu) {
      name = result->body.add_gpu.name;
    }
    if (name == nullptr) continue;
    const std::size_t end = strnlen(name, protocol::kNameLength);
    if (end == protocol::kNameLength) FAIL("a name without an end");
    for (std::size_t at = 0; at < end; ++at) {
      if (static_cast<unsigned char>(name[at]) < ' ' || name[at] == 0x7f) FAIL("a control character in a name");
    }
  }
  CHECK(passed > 50'000);
}

TEST_CASE("a kind that is not known comes through, but nothing that only rotad sends, and no other version") {
  for (unsigned kind = 0; kind < 65536; ++kind) {
    Message message;
    message.kind = static_cast<Kind>(kind);
    if (static_cast<bool>(decode(&message, sizeof message)) != (kind < 100)) FAIL("kind " << kind);
  }
  for (unsigned version = 0; version < 65536; ++version) {
    Message message;
    message.kind = Kind::kUsage;
    message.version = static_cast<std::uint16_t>(version);
    const bool spoken = version >= protocol::kOldestVersion && version <= protocol::kVersion;
    if (static_cast<bool>(decode(&message, sizeof message)) != spoken) FAIL("version " << version);
  }
}

TEST_CASE("no GPU has nothing, or more than 256 TiB, of memory") {
  protocol::AddGpu gpu{};
  CHECK(why_no_gpu(gpu) == "a GPU cannot have 0 bytes of memory");
  gpu.total_bytes = 1;
  CHECK(why_no_gpu(gpu).empty());
  gpu.total_bytes = std::uint64_t{1} << 48;
  CHECK(why_no_gpu(gpu).empty());
  ++gpu.total_bytes;
  CHECK_FALSE(why_no_gpu(gpu).empty());
}

TEST_CASE("a text that is too long for its field is cut and terminated") {
  char field[8];
  set_text(field, "1234567890");
  CHECK(std::string(field) == "1234567");
  set_text(field, "");
  CHECK(std::string(field).empty());
}

TEST_CASE("a UUID is written as nvidia-smi writes it") {
  Uuid uuid{};
  for (std::uint8_t i = 0; i < 16; ++i) uuid.bytes[i] = static_cast<std::uint8_t>(i * 17);
  CHECK(uuid_text(uuid) == "GPU-00112233-4455-6677-8899-aabbccddeeff");
}

}  // namespace
}  // namespace rota::server
