// Accepts connections.
#include <fmt/format.h>
#include <sys/socket.h>

#include <asio/error.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "scheduler/server/bare_packet.h"
#include "scheduler/server/client.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/log.h"

namespace rota::server {

using namespace std::chrono_literals;

void Server::accept() {
  listener_.async_wait(asio::posix::stream_descriptor::wait_read, [this](std::error_code error) {
    accepting_ = false;
    if (error == asio::error::operation_aborted || stopped_) return;
    if (error || !guarded("accept a connection", [this] { accept_all(); })) {
      guarded("accept connections again", [this] { accept_later(); });
    }
  });
  accepting_ = true;
}

void Server::accept_later() {
  accept_again_.expires_after(100ms);
  accept_again_.async_wait([this](std::error_code error) {
    accepting_ = false;
    if (!error && !stopped_) guarded("accept connections again", [this] { accept(); });
  });
  accepting_ = true;
}

void Server::accept_all() {
  constexpr int kAtOnce = 64;
  for (int i = 0; i < kAtOnce; ++i) {
    Descriptor socket(accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      // Out of descriptors or memory, perhaps machine-wide. The peers wait in the backlog: try again in a moment rather
      // than spin on a socket that stays readable.
      log::warn("cannot accept a connection: {}", strerror(errno));
      return accept_later();
    }
    if (!guarded("serve a connection", [&] { take_in(std::move(socket)); })) {
      // Unless its queue is known to be empty, it stays open until rotad ends.
      if (socket && !end_and_empty(socket.get())) socket.release();
    }
  }
  accept();
}

// If this throws, the socket is still the caller's, or has been closed.
void Server::take_in(Descriptor&& socket) {
  auto connection = std::make_shared<Connection>(io_, std::move(socket), ++last_number_, options_.trust, *this,
                                                 workers_, time_budget_);
  try {
    connection->share = connections_budget_.take(connection->domain().payer(), connection->is_root());
    if (!connection->share) {
      connection->refuse(fmt::format("rotad has {} connections and accepts no more from this user: end some programs",
                                     connections_.size()));
      connection->close();
      return;
    }
    idle_since_ = now();
    connections_.emplace(connection->number(), connection);
    connection->start();
  } catch (...) {
    connections_.erase(connection->number());
    connection->close();
    throw;
  }
}

}  // namespace rota::server
