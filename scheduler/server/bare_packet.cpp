#include "scheduler/server/bare_packet.h"

#include <sys/socket.h>

#include <cerrno>

namespace rota::server {
namespace {

// The send buffer of a peer holds some hundreds of packets, unless it is root's.
constexpr int kMostUnread = 1024;

}  // namespace

BarePacket read_bare(int socket, void* bytes, std::size_t size) {
  iovec body{bytes, size};
  msghdr header{};
  header.msg_iov = &body;
  header.msg_iovlen = 1;
  ssize_t length;
  do {
    length = recvmsg(socket, &header, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
  } while (length < 0 && errno == EINTR);
  if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {BarePacket::Kind::kNone};
  if (length < 0) return {BarePacket::Kind::kEnd};
  const auto whole = static_cast<std::size_t>(length);
  if ((header.msg_flags & MSG_CTRUNC) != 0) return {BarePacket::Kind::kWithDescriptors, whole};
  // A packet without content cannot be told from the end of the connection, and is taken for it.
  if (length == 0) return {BarePacket::Kind::kEnd};
  while (recv(socket, nullptr, 0, MSG_DONTWAIT) < 0 && errno == EINTR) continue;
  return {BarePacket::Kind::kPacket, whole};
}

bool end_and_empty(int socket) {
  shutdown(socket, SHUT_RDWR);
  // With the sender's credentials, the end of the queue differs from a packet without content.
  const int on = 1;
  if (setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) return false;
  for (int i = 0; i < kMostUnread; ++i) {
    // Space for the credentials only.
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
    msghdr header{};
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    if (recvmsg(socket, &header, MSG_PEEK | MSG_DONTWAIT) < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN) return true;
      continue;  // an error of the connection, which is reported once
    }
    if ((header.msg_flags & MSG_CTRUNC) != 0) return false;
    if (CMSG_FIRSTHDR(&header) == nullptr) return true;
    if (recv(socket, nullptr, 0, MSG_DONTWAIT) < 0 && errno != EINTR) return false;
  }
  return false;
}

}  // namespace rota::server
