// Accepts permitted peers and reads one line at a time. An answer is sent once and not queued: it fits any socket's
// buffer.
#include "scheduler/server/control.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "scheduler/server/log.h"

namespace rota::server {

struct Control::Session {
  asio::posix::stream_descriptor socket;
  uid_t uid;
  pid_t pid;
};

namespace {

// The most sessions at once; peers close the connection when they have their answer.
constexpr std::size_t kMaxSessions = 8;
// Delay before the next attempt to accept, after descriptors or memory ran out.
constexpr std::chrono::milliseconds kAcceptAgain{100};

bool may_ask(const ucred& peer) {
  return peer.uid == 0 || peer.uid == geteuid() || peer.gid == getegid();
}

}  // namespace

Control::Control(asio::io_context& io, Descriptor listener, std::string path, Carry carry)
    : listener_(io, listener.release()),
      accept_again_(io),
      path_(std::move(path)),
      carry_(std::move(carry)),
      id_(id_of(path_)) {}

void Control::listen_anew(Descriptor listener) {
  std::error_code ignored;
  listener_.close(ignored);
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
  if (is_at(path_, id_)) unlink(path_.c_str());
  std::error_code ignored;
  listener_.close(ignored);
  accept_again_.cancel();
  sessions_.clear();
}

void Control::accept() {
  listener_.async_wait(asio::posix::stream_descriptor::wait_read, [this](std::error_code error) {
    if (error || stopped_) return;
    Descriptor socket(accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      accept_one(std::move(socket));
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

void Control::accept_one(Descriptor socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return;
  const std::uint32_t number = ++last_number_;
  auto session = std::make_unique<Session>(
      Session{asio::posix::stream_descriptor(listener_.get_executor(), socket.release()), peer.uid, peer.pid});
  if (!may_ask(peer)) {
    log::warn("user {} (pid {}) may not change settings", peer.uid, peer.pid);
    // Reads what was already sent and accepts no more: closing with unread packets would reset the connection and lose
    // the reason.
    const int refused = session->socket.native_handle();
    shutdown(refused, SHUT_RD);
    char unread;
    while (recv(refused, &unread, sizeof unread, MSG_DONTWAIT) > 0) continue;
    answer(*session, "error: only root and the user and group that rotad runs as may change its settings");
    return;
  }
  // The oldest has had its time: no peer can keep others out by staying.
  if (sessions_.size() >= kMaxSessions) sessions_.erase(sessions_.begin());
  sessions_.emplace(number, std::move(session));
  read(number);
}

void Control::read(std::uint32_t number) {
  sessions_.at(number)->socket.async_wait(
      asio::posix::stream_descriptor::wait_read, [this, number](std::error_code error) {
        const auto found = sessions_.find(number);
        if (error || stopped_ || found == sessions_.end()) return;
        Session& session = *found->second;
        char text[kMaxControlBytes];
        const ssize_t length = recv(session.socket.native_handle(), text, sizeof text, MSG_DONTWAIT | MSG_TRUNC);
        if (length < 0 && (errno == EAGAIN || errno == EINTR)) return read(number);
        if (length <= 0) {
          sessions_.erase(found);
          return;
        }
        if (static_cast<std::size_t>(length) > sizeof text) {
          answer(session, fmt::format("error: the request has {} bytes and may have {}", length, sizeof text));
          return read(number);
        }
        const auto request = parse_control({text, static_cast<std::size_t>(length)});
        if (!request) {
          answer(session, "error: " + request.error().text);
          return read(number);
        }
        log::info("user {} (pid {}): {}", session.uid, session.pid,
                  std::string_view(text, static_cast<std::size_t>(length)));
        answer(session, "ok: " + carry_(*request));
        if (!stopped_) read(number);
      });
}

void Control::answer(Session& session, const std::string& line) {
  // A peer that does not read it or is gone does not need it.
  if (send(session.socket.native_handle(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
}

}  // namespace rota::server
