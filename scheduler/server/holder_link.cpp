#include "scheduler/server/holder_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <utility>

#include "scheduler/base/descriptor.h"
#include "scheduler/base/printable.h"
#include "scheduler/protocol/packet.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/lock_file.h"

namespace rota::server {

std::unique_ptr<HolderLink> HolderLink::connect(asio::io_context& io, const std::string& path, Workers& workers,
                                                Heard heard) {
  Descriptor socket = LockFile::connect_to_name(path);
  ucred peer{};
  socklen_t size = sizeof peer;
  if (!socket || getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return nullptr;
  return std::make_unique<HolderLink>(io, std::move(socket), peer, workers, std::move(heard));
}

// Any process may have bound the name: nothing that comes from there is trusted.
HolderLink::HolderLink(asio::io_context& io, Descriptor socket, const ucred& peer, Workers& workers, Heard heard)
    : socket_(io.get_executor(), std::move(socket), std::to_string(peer.uid), workers),
      heard_(std::move(heard)),
      pid_(peer.pid),
      uid_(peer.uid) {
  read();
}

void HolderLink::read() {
  socket_.when_readable([this, alive = alive_](std::error_code error) {
    if (!error && *alive) guarded("hear who has a GPU", [this] { on_readable(); });
  });
}

void HolderLink::on_readable() {
  const std::shared_ptr<bool> alive = alive_;
  protocol::DoorMessage message;
  const BarePacket packet = read_bare(socket_.get(), &message, sizeof message);
  if (packet.kind == BarePacket::Kind::kNone) return read();
  if (packet.kind != BarePacket::Kind::kPacket) return heard_.gone();
  if (packet.length == sizeof message && message.magic == protocol::kDoorMagic) {
    if (message.kind == protocol::DoorKind::kHolder) {
      holder_ = message.holder;
      make_printable(holder_->name);
      make_printable(holder_->socket);
      heard_.holder();
    } else if (message.kind == protocol::DoorKind::kYielded && std::exchange(asked_, false)) {
      message.yielded.gpu_count = std::min<std::uint32_t>(message.yielded.gpu_count, protocol::kMaxGpus);
      message.yielded.mover_count = std::min<std::uint32_t>(message.yielded.mover_count, protocol::kMostMovers);
      heard_.yielded(message.yielded);
    }
    if (!*alive) return;
  }
  read();
}

void HolderLink::ask() {
  protocol::DoorMessage message;
  message.kind = protocol::DoorKind::kYield;
  asked_ = true;
  protocol::write_packet(socket_.get(), &message, sizeof message, {}, MSG_DONTWAIT);
}

}  // namespace rota::server
