// Accepts permitted peers and reads one line at a time. An answer is sent once and not queued: it fits any socket's
// buffer.
#include "scheduler/server/control.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <asio/error.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "scheduler/server/bare_packet.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/log.h"
#include "scheduler/server/peer_socket.h"

namespace rota::server {

struct Control::Session {
  PeerSocket socket;
  uid_t uid;
  pid_t pid;
};

namespace {

// The most sessions at once; peers close the connection when they have their answer.
constexpr std::size_t kMaxSessions = 8;
// Delay before the next attempt to accept, after descriptors or memory ran out.
constexpr std::chrono::milliseconds kAcceptAgain{100};

gid_t group_of(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 ? info.st_gid : getegid();
}

}  // namespace

Control::Control(asio::io_context& io, Listener listener, std::string path, Trust trust, Workers& workers, Carry carry)
    : listener_(io, listener.socket.release()),
      accept_again_(io),
      path_(std::move(path)),
      inherited_(listener.inherited),
      group_(inherited_ ? group_of(path_) : getegid()),
      trust_(trust),
      workers_(workers),
      carry_(std::move(carry)),
      id_(id_of(path_)) {}

void Control::listen_anew(Descriptor listener) {
  // Peers that have not been accepted may have sent descriptors (bare_packet.h).
  workers_.close(Descriptor(listener_.release()), std::to_string(geteuid()), [](JobOutcome) {});
  listener_.assign(listener.release());
  id_ = id_of(path_);
  accept();
}

Control::~Control() {
  stop();
}

void Control::stop() {
  if (stopped_) return;
  stopped_ = true;
  if (!inherited_ && is_at(path_, id_)) unlink(path_.c_str());
  // As with the clients' socket: connections that were not accepted are closed when the process ends.
  const int listener = listener_.release();
  if (!inherited_) shutdown(listener, SHUT_RDWR);
  accept_again_.cancel();
  sessions_.clear();
}

void Control::accept() {
  listener_.async_wait(asio::posix::stream_descriptor::wait_read, [this](std::error_code error) {
    if (error == asio::error::operation_aborted || stopped_) return;
    Descriptor socket(accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      guarded("serve the control socket", [&] { accept_one(std::move(socket)); });
      // If that failed, what is in the socket's queue is not known.
      if (socket && !end_and_empty(socket.get())) socket.release();
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The peer waits in the backlog: try again in a moment rather than spin on a socket that stays readable.
      accept_again_.expires_after(kAcceptAgain);
      accept_again_.async_wait([this](std::error_code cancelled) {
        if (!cancelled && !stopped_) accept();
      });
      return;
    }
    accept();
  });
}

void Control::accept_one(Descriptor&& socket) {
  const Peer peer = identify_peer(socket.get());
  const bool permitted = peer.uid == 0 || peer.uid == geteuid() || is_member(socket.get(), peer, group_);
  const std::uint32_t number = ++last_number_;
  auto session = std::unique_ptr<Session>(
      new Session{{listener_.get_executor(), std::move(socket), TrustDomain::of(peer, trust_).payer(), workers_},
                  peer.uid,
                  peer.pid});
  const bool elsewhere = !is_in_own_container(peer, trust_);
  if (elsewhere || !permitted) {
    log::warn("user {} (pid {}){} may not change settings", peer.uid, peer.pid,
              elsewhere ? " in another container" : "");
    answer(
        *session,
        permitted
            ? "error: settings are changed from where rotad runs, not from another container, unless rotad "
              "runs with trust = \"user-everywhere\" or \"machine\""
            : "error: only root, the user that rotad runs as and members of its control socket's group may change its "
              "settings");
    return;
  }
  // The oldest session ends: no peer can keep others out by staying connected.
  if (sessions_.size() >= kMaxSessions) sessions_.erase(sessions_.begin());
  sessions_.emplace(number, std::move(session));
  read(number);
}

void Control::read(std::uint32_t number) {
  sessions_.at(number)->socket.when_readable([this, number](std::error_code error) {
    if (error == asio::error::operation_aborted || stopped_) return;
    if (!guarded("carry out a change of settings", [&] { on_readable(number); })) sessions_.erase(number);
  });
}

void Control::on_readable(std::uint32_t number) {
  const auto found = sessions_.find(number);
  if (found == sessions_.end()) return;
  Session& session = *found->second;
  char text[kMaxControlBytes];
  const BarePacket packet = read_bare(session.socket.get(), text, sizeof text);
  if (packet.kind == BarePacket::Kind::kNone) return read(number);
  if (packet.kind != BarePacket::Kind::kPacket) {
    if (packet.kind == BarePacket::Kind::kWithDescriptors) answer(session, "error: a request has no descriptors");
    sessions_.erase(found);
    return;
  }
  const std::size_t length = packet.length;
  if (length > sizeof text) {
    answer(session, fmt::format("error: the request has {} bytes and may have {}", length, sizeof text));
    return read(number);
  }
  const auto request = parse_control({text, length});
  if (!request) {
    answer(session, "error: " + request.error().text);
    return read(number);
  }
  log::info("user {} (pid {}): {}", session.uid, session.pid, std::string_view(text, length));
  const Result<std::string> done = carry_(*request);
  answer(session, done ? "ok: " + *done : "error: " + done.error().text);
  if (!stopped_) read(number);
}

void Control::answer(Session& session, const std::string& line) {
  // A peer that does not read it or has ended does not need it.
  if (send(session.socket.get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
}

}  // namespace rota::server
