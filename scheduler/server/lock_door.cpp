#include "scheduler/server/lock_door.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "scheduler/protocol/packet.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/peer.h"

namespace rota::server {

namespace {

// Any process may connect; beyond these numbers they are turned away, and may try again.
constexpr std::ptrdiff_t kMostVisitors = 64;
constexpr std::ptrdiff_t kMostOfOneUser = 16;

uid_t user_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 ? credentials.uid
                                                                               : static_cast<uid_t>(-1);
}

}  // namespace

LockDoor::LockDoor(asio::io_context& io, Descriptor name, Workers& workers,
                   std::function<protocol::DoorHolder()> holder, std::function<void(uid_t)> asked)
    : io_(io), workers_(workers), holder_(std::move(holder)), asked_(std::move(asked)), listener_(io, name.release()) {
  accept();
}

LockDoor::~LockDoor() {
  *alive_ = false;
  // The name is to be free at once, so this socket is closed here. From here on no process can connect, and what
  // unaccepted visitors have sent is closed with their own sockets.
  shutdown(listener_.native_handle(), SHUT_RDWR);
  for (;;) {
    Descriptor late(accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!late) break;
    const std::string payer = std::to_string(user_of(late.get()));
    const bool ended = guarded("send off who asks about a lock",
                               [&] { PeerSocket(io_.get_executor(), std::move(late), payer, workers_); });
    if (!ended) late.release();  // until rotad ends
  }
  std::error_code ignored;
  listener_.close(ignored);
}

void LockDoor::accept() {
  listener_.async_wait(asio::posix::stream_descriptor::wait_read, [this, alive = alive_](std::error_code error) {
    if (!error && *alive) guarded("answer who asks about a lock", [this] { accept_all(); });
  });
}

void LockDoor::accept_all() {
  constexpr int kAtOnce = 16;
  for (int i = 0; i < kAtOnce; ++i) {
    Descriptor socket(accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) break;
    const uid_t uid = user_of(socket.get());
    if (!guarded("answer who asks about a lock", [&] { take_in(std::move(socket), uid); })) {
      if (socket && !end_and_empty(socket.get())) socket.release();
    }
  }
  accept();
}

void LockDoor::take_in(Descriptor&& socket, uid_t uid) {
  auto visitor = std::unique_ptr<Visitor>(
      new Visitor{{io_.get_executor(), std::move(socket), std::to_string(uid), workers_}, uid});
  const auto of_user = std::ranges::count_if(visitors_, [&](const auto& each) { return each.second->uid == uid; });
  if (uid != 0 && (std::ssize(visitors_) >= kMostVisitors || of_user >= kMostOfOneUser)) return;
  protocol::DoorMessage message;
  message.kind = protocol::DoorKind::kHolder;
  message.holder = holder_();
  protocol::write_packet(visitor->socket.get(), &message, sizeof message, {}, MSG_DONTWAIT);
  visitors_.emplace(++last_, std::move(visitor));
  listen_to(last_);
}

void LockDoor::listen_to(std::uint64_t number) {
  visitors_.at(number)->socket.when_readable([this, number, alive = alive_](std::error_code error) {
    if (!error && *alive) guarded("hear who asks about a lock", [&] { on_readable(number); });
  });
}

void LockDoor::on_readable(std::uint64_t number) {
  const auto found = visitors_.find(number);
  if (found == visitors_.end()) return;
  protocol::DoorMessage message;
  const BarePacket packet = read_bare(found->second->socket.get(), &message, sizeof message);
  if (packet.kind == BarePacket::Kind::kNone) return listen_to(number);
  const bool whole =
      packet.kind == BarePacket::Kind::kPacket && packet.length >= offsetof(protocol::DoorMessage, holder);
  if (!whole || message.magic != protocol::kDoorMagic) {
    visitors_.erase(found);
    return;
  }
  listen_to(number);
  const uid_t uid = found->second->uid;
  if (message.kind != protocol::DoorKind::kYield || (uid != 0 && uid != geteuid())) return;
  found->second->asks = true;
  asked_(uid);  // which may end this object
}

void LockDoor::tell(const protocol::DoorYielded& yielded) {
  protocol::DoorMessage message;
  message.kind = protocol::DoorKind::kYielded;
  message.yielded = yielded;
  for (const auto& [number, visitor] : visitors_) {
    if (!visitor->asks) continue;
    protocol::write_packet(visitor->socket.get(), &message, sizeof message, {}, MSG_DONTWAIT);
  }
}

}  // namespace rota::server
