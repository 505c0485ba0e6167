// Takes the place at which a daemon listens: its folder, its lock, its socket.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "scheduler/protocol/socket_path.h"
#include "scheduler/server/client.h"

namespace rota::server {
namespace {

// Descriptors that must stay free besides the connections: the listener, locks, logs, and the two pages of a client
// that says hello.
constexpr std::size_t kReservedDescriptors = 96;

Result<bool> make_folder_of(const std::string& socket) {
  const std::size_t slash = socket.rfind('/');
  if (slash == std::string::npos || slash == 0) return true;
  const std::string folder = socket.substr(0, slash);
  // The machine's daemon is for everybody, a user's own for that user.
  mode_t mode = socket == protocol::kSystemSocket ? 0755 : 0700;
  if (socket == protocol::kSystemControlSocket) mode = 0750;
  if (mkdir(folder.c_str(), mode) != 0 && errno != EEXIST) {
    return Error{fmt::format("cannot create the folder {}: {}", folder, strerror(errno))};
  }
  return true;
}

// `mode`: the socket's.
Result<Descriptor> listen_at(const std::string& path, mode_t mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Error{fmt::format("the socket's path has {} bytes and may have at most {}: {}", path.size(),
                             sizeof address.sun_path - 1, path)};
  }
  path.copy(address.sun_path, path.size());
  Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return Error{fmt::format("cannot create a socket: {}", strerror(errno))};
  // This process holds the lock, so whatever is there belongs to a daemon that died. But only a socket is removed.
  struct stat info;
  if (lstat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) {
    return Error{fmt::format("{} exists and is not a socket: remove it or choose another --socket", path)};
  }
  unlink(path.c_str());
  const mode_t before = umask(0777 & ~mode);  // before the bind, so that there is no gap
  const int bound = bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = errno;
  umask(before);
  if (bound != 0) return Error{fmt::format("cannot bind {}: {}", path, strerror(error))};
  if (listen(listener.get(), SOMAXCONN) != 0)
    return Error{fmt::format("cannot listen at {}: {}", path, strerror(errno))};
  return listener;
}

}  // namespace

std::size_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  if (limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return static_cast<std::size_t>(limit.rlim_cur);
}

Result<std::unique_ptr<Server>> Server::open(asio::io_context& io, Options options) {
  if (const auto folder = make_folder_of(options.socket); !folder) return folder.error();
  auto locks = options.lock_directory.empty() ? Result<LockPlace>(default_lock_place())
                                              : make_lock_place(options.lock_directory);
  if (!locks) return locks.error();
  const std::string owner = fmt::format("rotad pid {} at {}", getpid(), options.socket);
  auto lock = LockFile::take(options.socket + ".lock", owner, 0644);
  if (!lock) return lock.error();
  if (const auto* taken = std::get_if<LockFile::Taken>(&*lock)) {
    return Error{fmt::format("{} is already served by {}", options.socket, taken->owner)};
  }
  // Every user may connect to root's daemon, unless its folder forbids it. Its settings are for its group.
  const bool root = geteuid() == 0;
  auto listener = listen_at(options.socket, root ? 0666 : 0600);
  if (!listener) return listener.error();
  if (options.control.empty()) {
    char path[protocol::kSocketPathLength];
    if (!protocol::control_path(options.socket.c_str(), path)) {
      return Error{
          fmt::format("{} is too long to append '.control': name the control socket with --control", options.socket)};
    }
    options.control = path;
  }
  if (const auto folder = make_folder_of(options.control); !folder) return folder.error();
  auto control = listen_at(options.control, root ? 0660 : 0600);
  if (!control) {
    unlink(options.socket.c_str());
    return control.error();
  }
  Result<EventLog> events = EventLog();
  if (!options.event_log.empty()) events = EventLog::create(options.event_log, options.settings);
  if (!events) return events.error();
  return std::unique_ptr<Server>(new Server(io, std::move(options), *locks, std::move(std::get<LockFile>(*lock)),
                                            std::move(*listener), std::move(*control), std::move(*events)));
}

Server::Server(asio::io_context& io, Options options, LockPlace locks, LockFile lock, Descriptor listener,
               Descriptor control, EventLog event_log)
    : io_(io),
      options_(std::move(options)),
      time_(options_.time_scale),
      core_(options_.settings),
      limits_(options_.limits),
      event_log_(std::move(event_log)),
      gpus_(std::move(locks), fmt::format("rotad pid {} at {}", getpid(), options_.socket)),
      lock_(std::move(lock)),
      listener_(io, listener.release()),
      control_(io, std::move(control), options_.control,
               [this](const ControlRequest& request) { return carry(request); }),
      housekeeping_(io),
      deadline_(io),
      wake_(io),
      late_reading_(io),
      accept_again_(io),
      started_(now()),
      idle_since_(now()),
      meter_(Meter::by_nvml(), [this](Meter::Answer answer) {
        asio::post(io_, [this, answer = std::move(answer)] {
          if (!stopped_) on_measured(answer);
        });
      }) {
  const std::size_t limit = raise_descriptor_limit();
  // Per connection: its socket and its process; some processes also ask the daemon to stay.
  max_connections_ = limit > kReservedDescriptors + 64 ? (limit - kReservedDescriptors) / 3 : 16;
}

Server::~Server() {
  stop();
}

}  // namespace rota::server
