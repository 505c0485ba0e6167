// Sending and receiving packets, with readiness from asio (asio 1.22 does not support SOCK_SEQPACKET sockets, nor
// descriptors that are sent with the data).
#include "scheduler/server/connection.h"

#include <sys/socket.h>

#include <asio/error.hpp>
#include <asio/post.hpp>
#include <cerrno>
#include <string>
#include <utility>

#include "scheduler/protocol/packet.h"
#include "scheduler/server/bare_packet.h"
#include "scheduler/server/decode.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/processor_time.h"

namespace rota::server {

using protocol::Message;

namespace {

// Made in advance: there would be no memory for it when it is needed.
const std::string kNoMemory = "rotad lacks the memory to serve this program: try again, or end some programs";

}  // namespace

Connection::Connection(asio::io_context& io, Descriptor&& socket, std::uint32_t number, Trust trust,
                       ConnectionOwner& owner, Workers& workers, std::shared_ptr<TimeBudget> time)
    : socket_(io),
      number_(number),
      owner_(owner),
      workers_(workers),
      time_(std::move(time)),
      peer_(identify_peer(socket.get())),
      domain_(TrustDomain::of(peer_, trust)),
      root_(peer_.uid == 0 && is_in_own_container(peer_, trust)),
      later_(io) {
  socket_.assign(socket.get());
  socket.release();
  time_->enter(domain_.payer());
}

void Connection::read() {
  if (reading_ || lent_ || awaits_ || !socket_.is_open()) return;
  const TimeBudget::Clock::time_point now = TimeBudget::Clock::now();
  const TimeBudget::Clock::time_point next = root_ ? now : time_->next(domain_.payer(), now);
  if (next <= now) return read_now();
  later_.expires_at(next);
  later_.async_wait([self = shared_from_this()](std::error_code error) {
    self->reading_ = false;
    if (error == asio::error::operation_aborted) return;
    if (error) return self->fail();
    // Charged too, since many may wait for the same user's time.
    self->charged("serve a client", [&] { self->read(); });
  });
  reading_ = true;
}

void Connection::read_now() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](std::error_code error) {
    self->reading_ = false;
    if (error == asio::error::operation_aborted) return;
    if (error) return self->fail();
    self->charged("serve a client", [&] { self->on_readable(); });
  });
  reading_ = true;
}

template <typename Work>
void Connection::charged(const char* what, const Work& work) {
  const std::chrono::nanoseconds before = processor_time();
  if (!guarded(what, work)) fail();
  guarded(what, [&] { time_->spend(domain_.payer(), processor_time() - before); });
}

// The server tells the peer, if that is possible, and forgets it.
void Connection::fail() {
  guarded("refuse a client", [this] { owner_.on_end(*this, kNoMemory); });
  close();
}

void Connection::on_readable() {
  constexpr int kMessagesAtOnce = 16;
  const std::chrono::nanoseconds until = processor_time() + kAtOnce;
  for (int i = 0; i < kMessagesAtOnce && processor_time() < until; ++i) {
    // flush() reads on when the peer has taken what is there for it.
    if (!socket_.is_open() || writing_ || lent_ || awaits_) return;
    alignas(Message) char buffer[protocol::kMaxMessageBytes];
    const BarePacket packet = read_bare(socket_.native_handle(), buffer, sizeof buffer);
    if (packet.kind == BarePacket::Kind::kNone) break;
    if (packet.kind == BarePacket::Kind::kEnd) {
      owner_.on_end(*this, {});
      return;
    }
    const Result<Message> message = decode(buffer, packet.length);
    if (!message) {
      owner_.on_end(*this, message.error().text);
      return;
    }
    if (packet.kind == BarePacket::Kind::kWithDescriptors) {
      owner_.on_descriptors(*this, *message);
      return;
    }
    owner_.on_message(*this, *message);
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
  if (std::exchange(awaits_, false) && !writing_) read();
}

void Connection::refuse(const std::string& text) {
  Message message{.kind = protocol::Kind::kRefused};
  set_text(message.body.refused.text, text);
  send(message);
}

void Connection::flush() {
  if (writing_) return;
  constexpr int kRowsAtOnce = 32;
  int rows = 0;
  while (socket_.is_open()) {
    if (outbox_.empty() && rows_ && ++rows > kRowsAtOnce) return flush_later();
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
    if (protocol::write_packet(socket_.native_handle(), &outbox_.front(), protocol::bytes_of(outbox_.front().kind), {},
                               MSG_DONTWAIT) >= 0) {
      outbox_.pop_front();
      continue;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) {
      outbox_.clear();  // the peer has ended; reading will notice that, too
      rows_ = nullptr;
      return;
    }
    socket_.async_wait(asio::posix::stream_descriptor::wait_write, [self = shared_from_this()](std::error_code error) {
      if (error == asio::error::operation_aborted) return;
      if (error) return self->fail();
      self->flush_now();
    });
    writing_ = true;
    return;
  }
}

// Other work is done between the parts of a long answer.
void Connection::flush_later() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->flush_now(); });
  writing_ = true;
}

void Connection::flush_now() {
  writing_ = false;
  charged("answer a client", [this] {
    flush();
    if (!writing_) read();
  });
}

bool Connection::send_with(Message message, std::initializer_list<int> descriptors) {
  if (!socket_.is_open() || !outbox_.empty()) return false;
  message.version = version;
  return protocol::write_packet(socket_.native_handle(), &message, protocol::bytes_of(message.kind), descriptors,
                                MSG_DONTWAIT) >= 0;
}

void Connection::take_back() {
  lent_ = false;
  read();
}

void Connection::close() {
  rows_ = nullptr;
  outbox_.clear();
  later_.cancel();
  if (!socket_.is_open()) return;
  Descriptor socket(socket_.release());
  shutdown(socket.get(), SHUT_RDWR);
  if (!lent_ && end_and_empty(socket.get())) {
    share = {};
    return;
  }
  // The socket counts as the peer's until it is closed.
  const bool taken = guarded("leave a connection to a worker process", [&] {
    workers_.close(std::move(socket), domain_.payer(),
                   [counts = std::make_shared<Budget::Share>(std::move(share))](JobOutcome) {});
  });
  if (!taken) socket.release();  // until rotad ends
}

}  // namespace rota::server
