// The control socket, on which settings are changed and rotad is stopped. It is separate from the clients' socket, so
// that a container that has the clients' socket cannot change everybody's settings. The kernel's credentials of the
// peer decide: root, the user that rotad runs as, and members of that user's group may use it, each in rotad's own
// container. Where the socket is inherited, members of the socket's group may use it instead.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "scheduler/base/descriptor.h"
#include "scheduler/base/result.h"
#include "scheduler/server/control_request.h"
#include "scheduler/server/place.h"
#include "scheduler/server/trust_domain.h"
#include "scheduler/server/workers.h"

namespace rota::server {

class Control {
 public:
  // Carries out a request and answers with one line. The error is for the peer, as in parse_control.
  using Carry = std::function<Result<std::string>(const ControlRequest&)>;

  Control(asio::io_context& io, Listener listener, std::string path, Trust trust, Workers& workers, Carry carry);
  ~Control();

  void start() { accept(); }
  // Listens at another socket of the same path, since the first is no longer there.
  void listen_anew(Descriptor listener);
  // Closes everything and removes the socket.
  void stop();

 private:
  struct Session;

  void accept();
  void accept_one(Descriptor&& socket);
  void read(std::uint32_t number);
  void on_readable(std::uint32_t number);
  void answer(Session& session, const std::string& line);

  asio::posix::stream_descriptor listener_;
  asio::steady_timer accept_again_;
  const std::string path_;
  const bool inherited_;  // the listener
  const gid_t group_;     // that may use it
  const Trust trust_;
  Workers& workers_;
  const Carry carry_;
  FileId id_;  // of the socket at the path
  std::map<std::uint32_t, std::unique_ptr<Session>> sessions_;
  std::uint32_t last_number_ = 0;
  bool stopped_ = false;
};

}  // namespace rota::server
