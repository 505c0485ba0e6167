// What a client sends to rotad.
#include <algorithm>
#include <cstring>
#include <memory>

#include "scheduler/server/decode.h"
#include "tests/fuzz/input.h"

namespace {

// The room that the server has for a packet; what is longer it cuts off.
constexpr std::size_t kRoom = 4096;

bool is_a_name(const char* text) {
  const char* const end = static_cast<const char*>(std::memchr(text, 0, rota::protocol::kNameLength));
  return end != nullptr && std::all_of(text, end, [](unsigned char c) { return c >= ' ' && c != 0x7f; });
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::unique_ptr<std::uint8_t[]> packet(new std::uint8_t[kRoom]());
  std::copy_n(data, std::min(size, kRoom), packet.get());
  const auto message = rota::server::decode(packet.get(), size);
  if (!message) {
    CHECK(rota::fuzz::is_a_line(message.error().text));
  } else if (message->kind == rota::protocol::Kind::kHello) {
    CHECK(is_a_name(message->body.hello.name));
  } else if (message->kind == rota::protocol::Kind::kAddGpu) {
    CHECK(is_a_name(message->body.add_gpu.name));
  }
  return 0;
}
