// Sending and receiving packets, with readiness from asio (its 1.22 knows no SOCK_SEQPACKET sockets of its
// own, and descriptors travel beside the data).
#include "scheduler/server/connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "scheduler/server/decode.h"
#include "scheduler/server/sent_descriptor.h"

namespace rota::server {

using protocol::Message;

namespace {

// Bytes of the next message, its length even if that is more than there is room for. With `sent` a descriptor that came
// with it, too: further ones, or all, are dropped by the kernel, as no room is given for them.
ssize_t receive(int socket, void* buffer, std::size_t size, Descriptor* sent) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec data{buffer, size};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (sent != nullptr) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  const ssize_t length = recvmsg(socket, &header, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
  const cmsghdr* ancillary = length > 0 && sent != nullptr ? CMSG_FIRSTHDR(&header) : nullptr;
  if (ancillary != nullptr && ancillary->cmsg_level == SOL_SOCKET && ancillary->cmsg_type == SCM_RIGHTS) {
    int descriptor = -1;
    memcpy(&descriptor, CMSG_DATA(ancillary), sizeof descriptor);
    *sent = Descriptor(descriptor);
  }
  return length;
}

}  // namespace

Connection::Connection(asio::io_context& io, Descriptor socket, std::uint32_t number, ConnectionOwner& owner)
    : socket_(io, socket.release()), number_(number), owner_(owner), peer_(identify_peer(socket_.native_handle())) {}

void Connection::read() {
  if (reading_ || !socket_.is_open()) return;
  reading_ = true;
  socket_.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](std::error_code error) {
    self->reading_ = false;
    if (!error) self->on_readable();
  });
}

void Connection::on_readable() {
  constexpr int kMessagesAtOnce = 16;
  for (int i = 0; i < kMessagesAtOnce; ++i) {
    if (!socket_.is_open() || writing_) return;  // flush() reads on when the peer has taken what is there for it
    alignas(Message) char buffer[protocol::kMaxMessageBytes];
    Descriptor sent;
    const ssize_t length = receive(socket_.native_handle(), buffer, sizeof buffer, takes_descriptors ? &sent : nullptr);
    if (sent && !may_be_memory(sent)) {
      close_elsewhere(std::move(sent));
      owner_.on_strange_descriptor(*this);
    }
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (length <= 0) {
      owner_.on_end(*this, {});
      return;
    }
    const Result<Message> message = decode(buffer, static_cast<std::size_t>(length));
    if (!message) {
      owner_.on_end(*this, message.error().text);
      return;
    }
    owner_.on_message(*this, *message, sent);
  }
  read();
}

void Connection::send(const Message& message) {
  outbox_.push_back(message);
  flush();
}

void Connection::send_rows(std::function<std::optional<Message>()> next) {
  rows_ = std::move(next);
  flush();
}

void Connection::refuse(const std::string& text) {
  Message message{.kind = protocol::Kind::kRefused};
  set_text(message.body.refused.text, text);
  send(message);
}

void Connection::flush() {
  if (writing_) return;
  while (socket_.is_open()) {
    if (outbox_.empty() && rows_) {
      if (const auto row = rows_()) {
        outbox_.push_back(*row);
      } else {
        rows_ = nullptr;
      }
    }
    if (outbox_.empty()) {
      return;
    }
    outbox_.front().version = version;
    const ssize_t sent =
        ::send(socket_.native_handle(), &outbox_.front(), sizeof(Message), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      outbox_.pop_front();
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) {
      outbox_.clear();  // the peer has gone; reading finds that out too
      rows_ = nullptr;
      return;
    }
    writing_ = true;
    socket_.async_wait(asio::posix::stream_descriptor::wait_write, [self = shared_from_this()](std::error_code error) {
      if (error) return;
      self->writing_ = false;
      self->flush();
      if (!self->writing_) self->read();
    });
    return;
  }
}

bool Connection::send_with(Message message, std::initializer_list<int> descriptors) {
  if (!socket_.is_open() || !outbox_.empty()) return false;
  message.version = version;
  const std::size_t bytes = descriptors.size() * sizeof(int);
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  iovec data{&message, sizeof message};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* ancillary = CMSG_FIRSTHDR(&header);
  ancillary->cmsg_level = SOL_SOCKET;
  ancillary->cmsg_type = SCM_RIGHTS;
  ancillary->cmsg_len = CMSG_LEN(bytes);
  memcpy(CMSG_DATA(ancillary), descriptors.begin(), bytes);
  return sendmsg(socket_.native_handle(), &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

void Connection::close() {
  rows_ = nullptr;
  outbox_.clear();
  std::error_code ignored;
  socket_.close(ignored);
}

}  // namespace rota::server
