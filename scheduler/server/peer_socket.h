// An accepted or connected socket whose peer nobody trusts. What the peer has sent may hold descriptors that take long
// to close, so the event loop closes the socket only if nothing is left in its queue (bare_packet.h); otherwise a
// worker process does, and the socket counts as the payer's meanwhile.
#pragma once

#include <asio/any_io_executor.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <string>
#include <utility>

#include "scheduler/base/descriptor.h"
#include "scheduler/server/bare_packet.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/workers.h"

namespace rota::server {

class PeerSocket {
 public:
  // If this throws, the socket is still the caller's.
  PeerSocket(const asio::any_io_executor& executor, Descriptor&& socket, std::string payer, Workers& workers)
      : socket_(executor), payer_(std::move(payer)), workers_(workers) {
    socket_.assign(socket.get());
    socket.release();
  }
  ~PeerSocket() {
    Descriptor end(socket_.release());
    // What was sent to the peer stays there for it to read.
    if (end_and_empty(end.get())) return;
    const bool taken = guarded("leave a connection to a worker process",
                               [&] { workers_.close(std::move(end), payer_, [](JobOutcome) {}); });
    if (!taken) end.release();  // until rotad ends
  }
  PeerSocket(const PeerSocket&) = delete;
  PeerSocket& operator=(const PeerSocket&) = delete;

  int get() { return socket_.native_handle(); }
  template <typename Handler>
  void when_readable(Handler&& handler) {
    socket_.async_wait(asio::posix::stream_descriptor::wait_read, std::forward<Handler>(handler));
  }

 private:
  asio::posix::stream_descriptor socket_;
  std::string payer_;
  Workers& workers_;
};

}  // namespace rota::server
