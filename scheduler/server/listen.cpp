// Takes the place at which a daemon listens: its folder, its lock, its socket.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "scheduler/address/socket_path.h"
#include "scheduler/base/unix_address.h"
#include "scheduler/server/client.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/metrics_server.h"
#include "scheduler/server/place.h"

namespace rota::server {
namespace {

// Descriptors that must stay free besides the connections: the listener, locks, logs, worker processes, and the two
// pages of a client that says hello.
constexpr std::size_t kReservedDescriptors = 96;
// For libraries, stacks and the heap, which maps its larger allocations.
constexpr std::size_t kReservedMappings = 4096;
// Processes that ask rotad to stay.
constexpr std::size_t kMostStayers = 4096;
// Requests for memory that wait for others: whenever some is given back, rotad examines all of them.
constexpr std::size_t kMostAsks = 1024;
// Answers to requests for status that are being read: with 2 000 clients each may keep some megabytes.
constexpr std::size_t kMostSnapshots = 64;

}  // namespace

Result<bool> make_folder_of(const std::string& socket) {
  const std::size_t slash = socket.rfind('/');
  if (slash == std::string::npos || slash == 0) return true;
  const std::string folder = socket.substr(0, slash);
  // The machine's daemon is for everybody, a user's own for that user.
  mode_t mode = socket == protocol::machine_socket() ? 0755 : 0700;
  if (socket == protocol::kSystemControlSocket) mode = 0750;
  if (mkdir(folder.c_str(), mode) != 0 && errno != EEXIST) {
    return Error{fmt::format("cannot create the folder {}: {}", folder, strerror(errno))};
  }
  return true;
}

Result<Descriptor> listen_at(const std::string& path, mode_t mode) {
  Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return Error{fmt::format("cannot create a socket: {}", strerror(errno))};
  // This process holds the lock, so whatever is there belongs to a daemon that died. But only a socket is removed.
  struct stat info;
  if (lstat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) {
    return Error{fmt::format("{} exists and is not a socket: remove it or choose another --socket", path)};
  }
  unlink(path.c_str());
  const mode_t before = umask(0777 & ~mode);  // before the bind, so that there is no gap
  const int error = bind_at(listener.get(), path.c_str());
  umask(before);
  if (error != 0) return Error{fmt::format("cannot bind {}: {}", path, strerror(error))};
  if (listen(listener.get(), SOMAXCONN) != 0)
    return Error{fmt::format("cannot listen at {}: {}", path, strerror(errno))};
  return listener;
}

Result<Listener> listen_or_inherit(Descriptor inherited, const std::string& path, mode_t mode) {
  if (inherited) return Listener{std::move(inherited), true};
  if (const auto folder = make_folder_of(path); !folder) return folder.error();
  auto listener = listen_at(path, mode);
  if (!listener) return listener.error();
  return Listener{std::move(*listener), false};
}

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

namespace {

// Mappings that a process may have; Linux's default if that cannot be read.
std::size_t mapping_limit() {
  std::size_t limit = 0;
  return std::ifstream("/proc/sys/vm/max_map_count") >> limit ? limit : 65530;
}

// Per connection: its socket and its process, and some processes also ask the daemon to stay; two pages.
std::size_t most_connections() {
  const auto most = [](std::size_t limit, std::size_t reserved, std::size_t each) {
    return limit > reserved + 64 ? (limit - reserved) / each : 16;
  };
  return std::min(most(raise_descriptor_limit(), kReservedDescriptors, 3), most(mapping_limit(), kReservedMappings, 2));
}

}  // namespace

Result<std::unique_ptr<Server>> Server::open(asio::io_context& io, Options options, Inherited inherited) {
  if (const auto folder = make_folder_of(options.socket); !folder) return folder.error();
  auto locks = options.lock_directory.empty() ? Result<LockPlace>(default_lock_place())
                                              : make_lock_place(options.lock_directory);
  if (!locks) return locks.error();
  const std::string owner = fmt::format("rotad pid {} at {}", getpid(), options.socket);
  // Only for this user's rotads: a process that may read a file can lock it.
  auto lock = LockFile::take(options.socket + ".lock", owner, 0600);
  if (!lock) return lock.error();
  if (const auto* taken = std::get_if<LockFile::Taken>(&*lock)) {
    return Error{fmt::format("{} is already served by {}", options.socket, taken->owner)};
  }
  // Every user may connect to root's daemon, unless its folder forbids it. Its settings are for its group.
  const bool root = geteuid() == 0;
  auto listener = listen_or_inherit(std::move(inherited.clients.socket), options.socket, root ? 0666 : 0600);
  if (!listener) return listener.error();
  if (options.control.empty()) {
    char path[protocol::kSocketPathLength];
    if (!protocol::control_path(options.socket.c_str(), path)) {
      return Error{
          fmt::format("{} is too long to append '.control': name the control socket with --control", options.socket)};
    }
    options.control = path;
  }
  auto control = listen_or_inherit(std::move(inherited.control.socket), options.control, root ? 0660 : 0600);
  if (!control) {
    if (!listener->inherited) unlink(options.socket.c_str());
    return control.error();
  }
  Result<EventLog> events = EventLog();
  if (!options.event_log.empty()) events = EventLog::create(options.event_log, options.settings);
  if (!events) return events.error();
  std::unique_ptr<Server> server(new Server(io, std::move(options), *locks, std::move(std::get<LockFile>(*lock)),
                                            std::move(*listener), std::move(*control), std::move(*events)));
  if (const auto set = server->set_metrics(server->options_.metrics); !set) return set.error();
  return server;
}

Server::Server(asio::io_context& io, Options options, LockPlace locks, LockFile lock, Listener listener,
               Listener control, EventLog event_log)
    : Leases(options.settings),
      io_(io),
      options_(std::move(options)),
      time_(options_.time_scale),
      visibility_(options_.visibility),
      gpus_by_default_(options_.gpus),
      limits_(options_.limits),
      event_log_(std::move(event_log)),
      claims_(is_machine()),
      workers_(io),
      gpus_(io, workers_, std::move(locks), fmt::format("rotad pid {} at {}", getpid(), options_.socket),
            options_.socket, is_machine(), [this](uid_t uid) { asio::post(io_, [this, uid] { on_asked(uid); }); }),
      lock_(std::move(lock)),
      socket_id_(id_of(options_.socket)),
      control_id_(id_of(options_.control)),
      inherited_(listener.inherited || control.inherited),
      place_safety_(safety_of_folder(options_.socket)),
      listener_(io, listener.socket.release()),
      listener_inherited_(listener.inherited),
      control_(io, std::move(control), options_.control, options_.trust, workers_,
               [this](const ControlRequest& request) { return carry(request); }),
      housekeeping_(io),
      deadline_(io, "do what is due",
                [this] {
                  if (!stopped_) do_what_is_due();
                }),
      gang_check_(io, "check a gang",
                  [this] {
                    if (!stopped_) check_if_due();
                  }),
      wake_(io),
      late_reading_(io),
      forced_reading_(io),
      accept_again_(io),
      connections_budget_(most_connections()),
      claims_due_(io),
      stayers_budget_(std::min(kMostStayers, connections_budget_.most())),
      asks_budget_(kMostAsks),
      snapshots_budget_(kMostSnapshots),
      started_(now()),
      idle_since_(now()),
      limits_pass_(io, "publish what limits leave", [this] { publish_limits_to_all(); }),
      shares_pass_(io, "share the host's memory out", [this] { share_host_now(); }),
      recipients_pass_(io, "publish who takes memory over", [this] { publish_hand_overs(); }),
      contexts_pass_(io, "publish what contexts take", [this] { publish_contexts_to_all(); }),
      host_pass_(io, "follow the host's memory", [this] { follow_host(); }),
      rooms_pass_(io, "read what stays on a GPU", [this] { tell_stays_of_all(); }),
      others_pass_(io, "read what programs have", [this] { return read_some_others(); }),
      activity_pass_(io, "read what programs do",
                     [this] {
                       for (const auto& [id, client] : clients_) {
                         if ((client->gpus().mask() & core_.shared_gpus()) != 0) read_activity(*client);
                       }
                     }),
      meter_(Meter::by_nvml(),
             [this](Meter::Answer answer) {
               asio::post(io_, [this, answer = std::move(answer)] {
                 if (!stopped_) on_measured(answer);
               });
             }),
      all_gpus_meter_(Meter::gpus_by_nvml(), [this](Meter::Answer answer) {
        asio::post(io_, [this, answer = std::move(answer)] {
          if (stopped_ || nvml_released_) return;
          for (const GpuReading& gpu : answer.gpus) all_gpus_.push_back(gpu.uuid);
          guarded("take all GPUs", [this] { keep_all_gpus(); });
        });
      }) {
  tell_memory_wait();
}

bool Server::is_machine() const {
  return geteuid() == 0 && options_.socket == protocol::machine_socket();
}

Server::~Server() {
  stop();
}

}  // namespace rota::server
