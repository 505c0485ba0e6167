// Checks of what clients send, kind by kind.
#include "scheduler/server/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "scheduler/base/printable.h"

namespace rota::server {
namespace {

using protocol::Kind;
using protocol::Message;

// From this kind on only rotad sends messages.
constexpr unsigned kFirstOfRotads = 100;

Error unknown(const Message& message) {
  return {fmt::format("a message of kind {}, which clients do not send", static_cast<unsigned>(message.kind))};
}

}  // namespace

Result<Message> decode(const void* bytes, std::size_t length) {
  if (length < protocol::kHeaderBytes) return Error{"this is not a rota message"};
  Message message;
  memcpy(&message, bytes, std::min(length, sizeof message));
  if (message.magic != protocol::kMagic) return Error{"this is not a rota message"};
  if (message.version < protocol::kOldestVersion || message.version > protocol::kVersion) {
    return Error{fmt::format(
        "this rotad speaks version {} of the protocol and the program's librota.so version {}: install the newer "
        "release of rota for both",
        protocol::kVersion, message.version)};
  }
  if (length > protocol::kMaxMessageBytes) {
    return Error{fmt::format("a message of {} bytes, which the protocol does not have", length)};
  }
  switch (message.kind) {
    case Kind::kHello:
      make_printable(message.body.hello.name);
      return message;
    case Kind::kAddGpu:
      make_printable(message.body.add_gpu.name);
      return message;
    case Kind::kSession:
      make_printable(message.body.session.id);
      make_printable(message.body.session.name);
      return message;
    case Kind::kChoose:
      make_printable(message.body.choose.session);
      return message;
    case Kind::kGang:
      make_printable(message.body.gang.name);
      return message;
    case Kind::kWant:
      message.body.want.task |= message.body.want.gpus;
      return message;
    case Kind::kGiveBack:
    case Kind::kUsage:
    case Kind::kStatus:
    case Kind::kStay:
      return message;
    default:  // of newer programs, perhaps
      if (static_cast<unsigned>(message.kind) < kFirstOfRotads) return message;
      return unknown(message);
  }
}

std::string why_no_gpu(const protocol::AddGpu& gpu) {
  // Sums over all clients stay far from overflowing 64 bits.
  if (gpu.total_bytes != 0 && gpu.total_bytes <= protocol::kMaxGpuBytes) return {};
  return fmt::format("a GPU cannot have {} bytes of memory", gpu.total_bytes);
}

}  // namespace rota::server
