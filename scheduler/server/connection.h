// One accepted socket: reads messages, a few at a time so that no peer keeps the others waiting, and answers. While an
// answer waits for a peer that does not read, nothing more is read from that peer, so no queue grows.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>

#include "scheduler/protocol/protocol.h"
#include "scheduler/server/budget.h"
#include "scheduler/server/peer.h"
#include "scheduler/server/time_budget.h"
#include "scheduler/server/trust_domain.h"
#include "scheduler/server/workers.h"

namespace rota::server {

class Connection;

// The server's callbacks. All may close the connection.
class ConnectionOwner {
 public:
  virtual void on_message(Connection& connection, const protocol::Message& message) = 0;
  // The next message, which is still in the socket's queue, comes with descriptors. The owner lends the socket to a
  // worker that takes it out, or closes the connection.
  virtual void on_descriptors(Connection& connection, const protocol::Message& message) = 0;
  // The peer closed the connection, or sent something that is not a rota message (`problem` says what; empty: it
  // closed).
  virtual void on_end(Connection& connection, const std::string& problem) = 0;

 protected:
  ~ConnectionOwner() = default;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `number` identifies the connection; `owner` outlives the connection's handlers (both live in the same io_context).
  // If this throws, the socket is still the caller's.
  Connection(asio::io_context& io, Descriptor&& socket, std::uint32_t number, Trust trust, ConnectionOwner& owner,
             Workers& workers, std::shared_ptr<TimeBudget> time);
  ~Connection() { time_->leave(domain_.payer()); }

  void start() { read(); }
  // Sends, or queues until the peer reads. Never blocks, never raises SIGPIPE.
  void send(const protocol::Message& message);
  // Sends at once with one or two descriptors; false if that is not possible (the peer does not read).
  bool send_with(protocol::Message message, std::initializer_list<int> descriptors);
  // The answer is not there yet: nothing is read before it is sent, or refused.
  void await_answer() { awaits_ = true; }
  // A long answer, row by row as the peer reads it: `next` returns nothing when it is complete.
  void send_rows(std::function<std::optional<protocol::Message>()> next);
  // kRefused with this text.
  void refuse(const std::string& text);
  // Nothing more is read or sent, and the peer sees the end; handlers under way do nothing. A socket with descriptors
  // in its queue is closed by a worker.
  void close();

  // While the socket is lent to a worker, nothing is read here.
  void lend() { lent_ = true; }
  void take_back();
  // For a worker; negative: closed.
  int socket() { return socket_.is_open() ? socket_.native_handle() : -1; }
  // Whether nothing waits for the peer to read.
  bool may_be_sent_to() const { return socket_.is_open() && outbox_.empty(); }

  std::uint32_t number() const { return number_; }
  const Peer& peer() const { return peer_; }
  Peer& peer() { return peer_; }
  const TrustDomain& domain() const { return domain_; }
  // Root, in rotad's own container: nothing is hidden from it.
  bool is_root() const { return root_; }

  std::uint32_t client = 0;                          // after hello; 0 before
  bool stays = false;                                // sent kStay
  std::uint16_t version = protocol::kOldestVersion;  // the version in use; chosen by hello
  Budget::Share share;                               // of all connections; until the socket is closed

 private:
  void read();
  void read_now();
  void on_readable();
  void fail();
  void flush();
  void flush_later();
  void flush_now();
  // Does this for the peer, and charges its user's part of the time.
  template <typename Work>
  void charged(const char* what, const Work& work);

  asio::posix::stream_descriptor socket_;
  const std::uint32_t number_;
  ConnectionOwner& owner_;
  Workers& workers_;
  const std::shared_ptr<TimeBudget> time_;
  Peer peer_;
  const TrustDomain domain_;
  const bool root_;
  asio::steady_timer later_;
  std::deque<protocol::Message> outbox_;
  std::function<std::optional<protocol::Message>()> rows_;
  bool writing_ = false;  // waiting until the peer takes more, or others have had their turn
  bool reading_ = false;  // waiting until the peer says more
  bool lent_ = false;
  bool awaits_ = false;  // an answer
};

}  // namespace rota::server
