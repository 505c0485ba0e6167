#include "scheduler/server/holder_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "scheduler/protocol/descriptor.h"
#include "scheduler/protocol/packet.h"
#include "scheduler/server/lock_file.h"

namespace rota::server {

std::unique_ptr<HolderLink> HolderLink::connect(asio::io_context& io, const std::string& path, Heard heard) {
  Descriptor socket = LockFile::connect_to_name(path);
  if (!socket) return nullptr;
  return std::make_unique<HolderLink>(io, socket.release(), std::move(heard));
}

HolderLink::HolderLink(asio::io_context& io, int socket, Heard heard) : socket_(io, socket), heard_(std::move(heard)) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0) {
    pid_ = credentials.pid;
    uid_ = credentials.uid;
  }
  read();
}

void HolderLink::read() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_read, [this, alive = alive_](std::error_code error) {
    if (error || !*alive) return;
    protocol::DoorMessage message;
    const ssize_t length = protocol::read_packet(socket_.native_handle(), &message, sizeof message, {}, MSG_DONTWAIT);
    if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return read();
    if (length <= 0) return heard_.gone();
    if (length == static_cast<ssize_t>(sizeof message) && message.magic == protocol::kDoorMagic) {
      if (message.kind == protocol::DoorKind::kHolder) {
        holder_ = message.holder;
        holder_->name[protocol::kNameLength - 1] = '\0';
        holder_->socket[protocol::kSocketPathLength - 1] = '\0';
        heard_.holder();
      } else if (message.kind == protocol::DoorKind::kYielded) {
        message.yielded.gpu_count = std::min<std::uint32_t>(message.yielded.gpu_count, protocol::kMaxGpus);
        message.yielded.mover_count = std::min<std::uint32_t>(message.yielded.mover_count, protocol::kMostMovers);
        heard_.yielded(message.yielded);
      }
      if (!*alive) return;
    }
    read();
  });
}

void HolderLink::ask() {
  protocol::DoorMessage message;
  message.kind = protocol::DoorKind::kYield;
  protocol::write_packet(socket_.native_handle(), &message, sizeof message, {}, MSG_DONTWAIT);
}

}  // namespace rota::server
