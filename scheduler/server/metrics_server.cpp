#include "scheduler/server/metrics_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/buffer.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <future>
#include <list>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "scheduler/base/descriptor.h"
#include "scheduler/metrics/exposition.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/left_behind.h"
#include "scheduler/server/listen_address.h"
#include "scheduler/server/log.h"

namespace rota::server {

using namespace std::chrono_literals;
using metrics::Format;
using protocol::Snapshot;
using Clock = std::chrono::steady_clock;

namespace {

// How long, and how many, peers may say nothing or read nothing. One more takes the place of the oldest, so a scraper
// that has just connected is served whatever others do.
constexpr auto kPatience = 10s;
constexpr std::size_t kMostPeers = 16;
constexpr std::size_t kMostRequestBytes = 8192;
constexpr auto kFresh = 1s;
constexpr auto kAcceptAgain = 100ms;
constexpr auto kLastFile = 2s;

std::string hostname() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

Result<Descriptor> listen_on(const std::string& text) {
  const auto address = parse_listen_address(text);
  if (!address) return Error{fmt::format("'{}' is not an address with a port", text)};
  Descriptor socket(::socket(address->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  // Otherwise connections that have ended occupy the port for a minute.
  if (socket) setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const auto* const where = reinterpret_cast<const sockaddr*>(&address->address);
  if (socket && bind(socket.get(), where, address->length) == 0 && listen(socket.get(), 64) == 0) return socket;
  const int error = errno;
  const char* remedy = "";
  if (error == EADDRINUSE) {
    remedy =
        ": end what listens there (`ss --tcp --listening --processes` names it), or choose another port in "
        "metrics.listen of rotad.toml";
  } else if (error == EACCES) {
    remedy = ": choose a port from 1024 on in metrics.listen of rotad.toml";
  } else if (error == EADDRNOTAVAIL) {
    remedy = ": this machine does not have that address; choose another in metrics.listen of rotad.toml";
  } else if (error == EAFNOSUPPORT) {
    remedy = ": rotad.service does not allow it unless RestrictAddressFamilies has AF_INET and AF_INET6";
  }
  return Error{fmt::format("cannot serve metrics at {}: {}{}", text, strerror(error), remedy)};
}

// By a rename: a reader of the file sees the old text or the new one. Nothing: it was written.
std::optional<std::string> write_file(const std::string& path, const std::string& text) {
  const std::string partial = path + ".partial";
  unlink(partial.c_str());
  const auto failed = [&](const char* what) {
    const int error = errno;
    unlink(partial.c_str());
    return fmt::format("cannot {} {}: {}", what, path, strerror(error));
  };
  // Never another user's file or link, in case others can write into the folder.
  const Descriptor file(::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file) return failed("create");
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = write(file.get(), text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed("write");
    at += static_cast<std::size_t>(written);
  }
  // node_exporter runs as another user.
  if (fchmod(file.get(), 0644) != 0 || rename(partial.c_str(), path.c_str()) != 0) return failed("replace");
  return std::nullopt;
}

using Response = std::shared_ptr<const std::string>;

Response response(const char* status, const char* type, const std::string& body) {
  return std::make_shared<const std::string>(
      fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status, type,
                  body.size(), body));
}

Response problem(const char* status) {
  return response(status, "text/plain; charset=utf-8", fmt::format("{}; rotad's figures are at /metrics\n", status));
}

}  // namespace

struct MetricsServer::Peer {
  Peer(asio::io_context& io, int socket) : descriptor(io, socket), deadline(io) {}
  asio::posix::stream_descriptor descriptor;
  asio::steady_timer deadline;
  std::array<char, 1024> part{};
  std::string request;
  bool head = false;  // wants no body
  Format format = Format::kPrometheus;
  bool waits = false;
};

struct MetricsServer::Shared {
  using PeerAt = std::shared_ptr<Peer>;

  Shared(MetricsSettings all, Ask asks, Descriptor listening)
      : settings(std::move(all)), ask(std::move(asks)), listener(io), accept_again(io), file_due(io) {
    if (listening) {
      listener.assign(listening.get());
      listening.release();
    }
  }

  void run();
  void start();
  void change(const MetricsSettings& all, const std::shared_ptr<Descriptor>& listening);
  void write_file_from_now_on();
  void accept();
  bool take_in_all();
  void accept_all();
  void accept_later();
  void take_in(Descriptor&& socket);
  void read(const PeerAt& peer);
  void on_request(const PeerAt& peer);
  void answer(const PeerAt& peer);
  void send(const PeerAt& peer, Response text);
  void drop(const PeerAt& peer);
  void take(std::shared_ptr<const Snapshot> news);
  void want();
  void write_later();
  void write_now();
  Response rendered(Format format);

  MetricsSettings settings;
  const Ask ask;
  asio::io_context io{1};
  const asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  asio::posix::stream_descriptor listener;
  asio::steady_timer accept_again;
  asio::steady_timer file_due;
  std::list<PeerAt> peers;  // the oldest first
  std::shared_ptr<const Snapshot> snapshot;
  Clock::time_point snapshot_at{};
  std::array<Response, 2> responses;  // of this snapshot, by Format
  bool asked = false;
  bool file_wanted = false;
  bool wrote_file = false;   // the textfile is its own
  std::string file_problem;  // the last that was logged

  std::mutex mutex;
  std::condition_variable changed;
  bool runs = false;
};

void MetricsServer::Shared::start() {
  if (listener.is_open()) accept();
  write_file_from_now_on();
}

void MetricsServer::Shared::write_file_from_now_on() {
  if (settings.textfile.empty()) return;
  file_wanted = true;
  want();
  write_later();
}

// `listening`: null if the address has not changed.
void MetricsServer::Shared::change(const MetricsSettings& all, const std::shared_ptr<Descriptor>& listening) {
  if (listening != nullptr) {
    // Takes in peers that have connected and were not accepted yet.
    if (listener.is_open()) guarded("serve metrics", [&] { take_in_all(); });
    accept_again.cancel();
    std::error_code ignored;
    listener.close(ignored);
    if (*listening) {
      listener.assign(listening->get());
      listening->release();
      accept();
    }
  }
  if (all.textfile != settings.textfile && std::exchange(wrote_file, false)) unlink(settings.textfile.c_str());
  settings = all;
  file_due.cancel();
  write_file_from_now_on();
}

void MetricsServer::Shared::accept() {
  listener.async_wait(asio::posix::stream_descriptor::wait_read, [this](std::error_code error) {
    if (error) return;
    if (!guarded("serve metrics", [&] { accept_all(); })) guarded("serve metrics", [&] { accept_later(); });
  });
}

void MetricsServer::Shared::accept_later() {
  accept_again.expires_after(kAcceptAgain);
  accept_again.async_wait([this](std::error_code error) {
    if (!error) accept();
  });
}

// False: there are no descriptors or no memory.
bool MetricsServer::Shared::take_in_all() {
  constexpr int kAtOnce = 16;
  for (int i = 0; i < kAtOnce; ++i) {
    Descriptor socket(accept4(listener.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      return false;
    }
    guarded("serve metrics", [&] { take_in(std::move(socket)); });
  }
  return true;
}

void MetricsServer::Shared::accept_all() {
  if (!take_in_all()) return accept_later();
  accept();
}

void MetricsServer::Shared::take_in(Descriptor&& socket) {
  if (peers.size() >= kMostPeers) drop(peers.front());
  const auto peer = std::make_shared<Peer>(io, socket.get());
  socket.release();
  peers.push_back(peer);
  peer->deadline.expires_after(kPatience);
  peer->deadline.async_wait([this, peer](std::error_code error) {
    if (!error) drop(peer);
  });
  read(peer);
}

void MetricsServer::Shared::drop(const PeerAt& peer) {
  std::error_code ignored;
  peer->deadline.cancel();
  peer->waits = false;
  peer->descriptor.close(ignored);
  std::erase(peers, PeerAt(peer));
}

void MetricsServer::Shared::read(const PeerAt& peer) {
  peer->descriptor.async_read_some(asio::buffer(peer->part), [this, peer](std::error_code error, std::size_t bytes) {
    if (error) return drop(peer);
    const bool done = guarded("serve metrics", [&] {
      peer->request.append(peer->part.data(), bytes);
      if (peer->request.find("\r\n\r\n") != std::string::npos) return on_request(peer);
      if (peer->request.size() > kMostRequestBytes) return send(peer, problem("431 Request Header Fields Too Large"));
      read(peer);
    });
    if (!done) drop(peer);
  });
}

void MetricsServer::Shared::on_request(const PeerAt& peer) {
  std::string_view request = peer->request;
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const std::string_view method = line.substr(0, line.find(' '));
  std::string_view path = line.substr(std::min(line.size(), method.size() + 1));
  path = path.substr(0, path.find_first_of(" ?"));
  if (!line.ends_with(" HTTP/1.1") && !line.ends_with(" HTTP/1.0")) return send(peer, problem("400 Bad Request"));
  peer->head = method == "HEAD";
  if (method != "GET" && !peer->head) return send(peer, problem("405 Method Not Allowed"));
  if (path != "/metrics") return send(peer, problem("404 Not Found"));
  const bool open = request.find("application/openmetrics-text") != std::string_view::npos;
  peer->format = open ? Format::kOpenMetrics : Format::kPrometheus;
  if (snapshot != nullptr && Clock::now() - snapshot_at < kFresh) return answer(peer);
  peer->waits = true;
  want();
}

void MetricsServer::Shared::want() {
  if (std::exchange(asked, true)) return;
  if (!guarded("ask for figures", [&] { ask(); })) asked = false;
}

Response MetricsServer::Shared::rendered(Format format) {
  Response& known = responses[static_cast<std::size_t>(format)];
  if (known == nullptr) {
    known = response("200 OK", metrics::content_type(format), metrics::exposition(*snapshot, hostname(), format));
  }
  return known;
}

void MetricsServer::Shared::answer(const PeerAt& peer) {
  peer->waits = false;
  send(peer, snapshot == nullptr ? problem("503 Service Unavailable") : rendered(peer->format));
}

void MetricsServer::Shared::send(const PeerAt& peer, Response text) {
  const std::size_t bytes = peer->head ? text->find("\r\n\r\n") + 4 : text->size();
  const auto buffer = asio::buffer(text->data(), bytes);
  asio::async_write(peer->descriptor, buffer, [this, peer, text = std::move(text)](std::error_code, std::size_t) {
    // The peer closes once it has read all. If it has sent more than was read, closing here would throw away what it
    // has not read yet.
    shutdown(peer->descriptor.native_handle(), SHUT_WR);
    const auto wait_for_end = [this, peer](const auto& again) -> void {
      peer->descriptor.async_read_some(asio::buffer(peer->part),
                                       [this, peer, again](std::error_code error, std::size_t) {
                                         if (error || !peer->descriptor.is_open()) return drop(peer);
                                         again(again);
                                       });
    };
    if (peer->descriptor.is_open()) wait_for_end(wait_for_end);
  });
}

void MetricsServer::Shared::take(std::shared_ptr<const Snapshot> news) {
  asked = false;
  snapshot = std::move(news);
  snapshot_at = Clock::now();
  responses = {};
  const std::list<PeerAt> all = peers;
  for (const PeerAt& peer : all) {
    if (peer->waits && !guarded("serve metrics", [&] { answer(peer); })) drop(peer);
  }
  if (std::exchange(file_wanted, false)) write_now();
}

void MetricsServer::Shared::write_later() {
  file_due.expires_after(settings.interval);
  file_due.async_wait([this](std::error_code error) {
    if (error) return;
    file_wanted = true;
    want();
    write_later();
  });
}

void MetricsServer::Shared::write_now() {
  if (snapshot == nullptr) return;
  const std::string text = metrics::exposition(*snapshot, hostname(), Format::kPrometheus);
  const std::string failed = write_file(settings.textfile, text).value_or("");
  if (!failed.empty() && failed != file_problem) log::warn("{}: node_exporter does not get rota's metrics", failed);
  if (failed.empty() && !file_problem.empty()) log::info("{} is written again", settings.textfile);
  wrote_file |= failed.empty();
  file_problem = failed;
}

void MetricsServer::Shared::run() {
  guarded("serve metrics", [&] { start(); });
  // An exception in a handler ends only that handler's work.
  for (bool ended = false; !ended;) ended = guarded("serve metrics", [&] { io.run(); });
  if (wrote_file) unlink(settings.textfile.c_str());
  peers.clear();
  const std::lock_guard lock(mutex);
  runs = false;
  changed.notify_all();
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::open(const MetricsSettings& settings, Ask ask) {
  Descriptor listening;
  if (!settings.listen.empty()) {
    auto made = listen_on(settings.listen);
    if (!made) return made.error();
    listening = std::move(*made);
  }
  return std::unique_ptr<MetricsServer>(
      new MetricsServer(std::make_shared<Shared>(settings, std::move(ask), std::move(listening)), settings.listen));
}

Result<bool> MetricsServer::change(const MetricsSettings& settings) {
  std::shared_ptr<Descriptor> listening;
  if (settings.listen != listens_at_) {
    listening = std::make_shared<Descriptor>();
    if (!settings.listen.empty()) {
      auto made = listen_on(settings.listen);
      if (!made) return made.error();
      *listening = std::move(*made);
    }
  }
  const auto done = std::make_shared<std::promise<void>>();
  asio::post(shared_->io, [shared = shared_.get(), settings, listening, done] {
    guarded("serve metrics", [&] { shared->change(settings, listening); });
    done->set_value();
  });
  done->get_future().wait_for(kLastFile);  // a file system may hang
  listens_at_ = settings.listen;
  return true;
}

bool MetricsServer::start() {
  // Signals are the server's.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    shared_->runs = true;
    thread_ = std::thread([shared = shared_] { shared->run(); });
  } catch (const std::system_error&) {
    shared_->runs = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return shared_->runs;
}

MetricsServer::~MetricsServer() {
  shared_->io.stop();
  std::unique_lock lock(shared_->mutex);
  const bool ended = shared_->changed.wait_for(lock, kLastFile, [this] { return !shared_->runs; });
  lock.unlock();
  join_or_leave_behind(thread_, ended);
}

void MetricsServer::publish(std::shared_ptr<const Snapshot> snapshot) {
  asio::post(shared_->io, [shared = shared_.get(), snapshot = std::move(snapshot)] { shared->take(snapshot); });
}

}  // namespace rota::server
