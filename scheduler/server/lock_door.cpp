#include "scheduler/server/lock_door.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "scheduler/protocol/packet.h"
#include "scheduler/server/peer.h"

namespace rota::server {

namespace {

// Anyone may come; more than so many are sent off, and come again.
constexpr std::ptrdiff_t kMostVisitors = 64;
constexpr std::ptrdiff_t kMostOfOneUser = 16;

uid_t user_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 ? credentials.uid
                                                                               : static_cast<uid_t>(-1);
}

}  // namespace

LockDoor::LockDoor(asio::io_context& io, Descriptor name, std::function<protocol::DoorHolder()> holder,
                   std::function<void(uid_t)> asked)
    : io_(io), holder_(std::move(holder)), asked_(std::move(asked)), listener_(io, name.release()) {
  accept();
}

LockDoor::~LockDoor() {
  *alive_ = false;
  std::error_code ignored;
  listener_.close(ignored);
}

void LockDoor::accept() {
  listener_.async_wait(asio::posix::stream_descriptor::wait_read, [this, alive = alive_](std::error_code error) {
    if (!error && *alive) accept_all();
  });
}

void LockDoor::accept_all() {
  constexpr int kAtOnce = 16;
  for (int i = 0; i < kAtOnce; ++i) {
    Descriptor socket(accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) break;
    const uid_t uid = user_of(socket.get());
    const auto of_user = std::ranges::count_if(visitors_, [&](const auto& each) { return each.second->uid == uid; });
    if (uid != 0 && (std::ssize(visitors_) >= kMostVisitors || of_user >= kMostOfOneUser)) continue;
    protocol::DoorMessage message;
    message.kind = protocol::DoorKind::kHolder;
    message.holder = holder_();
    protocol::write_packet(socket.get(), &message, sizeof message, {}, MSG_DONTWAIT);
    auto visitor = std::make_unique<Visitor>(io_, std::move(socket));
    visitor->uid = uid;
    visitors_.emplace(++last_, std::move(visitor));
    listen_to(last_);
  }
  accept();
}

void LockDoor::listen_to(std::uint64_t number) {
  visitors_.at(number)->socket.async_wait(
      asio::posix::stream_descriptor::wait_read, [this, number, alive = alive_](std::error_code error) {
        if (error || !*alive) return;
        const auto found = visitors_.find(number);
        if (found == visitors_.end()) return;
        protocol::DoorMessage message;
        const ssize_t length =
            protocol::read_packet(found->second->socket.native_handle(), &message, sizeof message, {}, MSG_DONTWAIT);
        if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return listen_to(number);
        const bool whole = length >= static_cast<ssize_t>(offsetof(protocol::DoorMessage, holder));
        if (!whole || message.magic != protocol::kDoorMagic) {
          visitors_.erase(found);
          return;
        }
        listen_to(number);
        const uid_t uid = found->second->uid;
        if (message.kind != protocol::DoorKind::kYield || (uid != 0 && uid != geteuid())) return;
        found->second->asks = true;
        asked_(uid);  // which may end this object
      });
}

void LockDoor::tell(const protocol::DoorYielded& yielded) {
  protocol::DoorMessage message;
  message.kind = protocol::DoorKind::kYielded;
  message.yielded = yielded;
  for (const auto& [number, visitor] : visitors_) {
    if (!visitor->asks) continue;
    protocol::write_packet(visitor->socket.native_handle(), &message, sizeof message, {}, MSG_DONTWAIT);
  }
}

}  // namespace rota::server
