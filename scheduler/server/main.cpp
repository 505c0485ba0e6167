// rotad: decides which program may use which GPU, and when.
#include <pwd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <asio/signal_set.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>

#include "scheduler/address/socket_path.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/base/host_memory.h"
#include "scheduler/base/result.h"
#include "scheduler/log/event_log.h"
#include "scheduler/server/config.h"
#include "scheduler/server/log.h"
#include "scheduler/server/server.h"

namespace {

using rota::scheduler::parse_duration;
using rota::scheduler::parse_mode;

// Where a daemon listens by default: for root the machine's place, for others the user's own.
rota::Result<std::string> default_socket() {
  const auto candidates = rota::protocol::socket_candidates();
  if (candidates.count == 0) return rota::Error{"ROTA_SOCKET is longer than a path may be (4095 bytes)"};
  if (geteuid() == 0) return std::string(candidates.list[0].path);
  if (const auto* own = rota::protocol::own_place(candidates)) return std::string(own->path);
  const std::string last = candidates.list[candidates.count - 1].path;
  return rota::Error{last.substr(0, last.rfind('/')) +
                     " belongs to another user, is open to others or cannot be created: programs would not use a rotad "
                     "there; name another place with --socket, and in ROTA_SOCKET for the programs"};
}

// A terminal that closes, or somebody who expects a daemon to read its settings again, sends SIGHUP: it must not end
// the turns of everybody, least of all without a word.
void log_hangups(asio::signal_set& hangups) {
  hangups.async_wait([&hangups](std::error_code error, int) {
    if (error) return;
    rota::server::log::warn(
        "SIGHUP: ignored; settings are read at the start only, `rota control` changes them while rotad runs");
    log_hangups(hangups);
  });
}

// Programs ask the first rotad that they find: one at a later place than this one's is not in the way.
void warn_of_another(const std::string& socket) {
  rota::protocol::SocketCandidates earlier = rota::protocol::socket_candidates();
  const rota::protocol::SocketCandidate* const first = earlier.list;
  earlier.count = static_cast<std::size_t>(
      std::find_if(first, first + earlier.count, [&](const auto& candidate) { return socket == candidate.path; }) -
      first);
  const rota::protocol::SocketSearch search = rota::protocol::search_rotad(earlier);
  const rota::Descriptor other(search.descriptor);
  if (!other) return;
  rota::server::log::warn(
      "another rotad answers at {}, where programs look first: this one serves only programs with "
      "ROTA_SOCKET={}",
      search.candidate.path, socket);
}

void warn_of_unknown_users(const std::string& config, const rota::server::LimitSettings& limits) {
  for (const auto& [name, unused] : limits.users) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread yet
    if (getpwnam(name.c_str()) != nullptr || name.find_first_not_of("0123456789") == std::string::npos) continue;
    rota::server::log::warn(
        "{}: there is no user '{}' on this machine, so its limits apply to nobody until it exists and rotad is started "
        "again",
        config, name);
  }
}

// A cgroup may come later, with the service or the job whose it is: no more than a warning.
void warn_of_unknown_cgroups(const std::string& config, const rota::server::LimitSettings& limits) {
  for (const auto& [path, unused] : limits.cgroups) {
    const auto exists = [&](const rota::Cgroup& hierarchy) {
      std::error_code ignored;
      return std::filesystem::is_directory(hierarchy.mount + path, ignored);
    };
    if (std::ranges::any_of(rota::memory_hierarchies(), exists)) continue;
    rota::server::log::warn(
        "{}: there is no cgroup '{}' on this machine now, so its limits apply to nobody until there is", config, path);
  }
}

// Reads the configuration as a rotad would that starts now, and serves nothing.
int check_config(const std::string& path) {
  if (path.empty()) {
    printf("there is no rotad.toml: rotad would start with its defaults\n");
    return 0;
  }
  const auto config = rota::server::read_config(path);
  if (!config) {
    fprintf(stderr, "rotad: %s\n", config.error().text.c_str());
    return 1;
  }
  warn_of_unknown_users(path, config->limits);
  warn_of_unknown_cgroups(path, config->limits);
  printf("%s can be read\n", path.c_str());
  return 0;
}

int replay(const std::string& path) {
  std::ifstream log(path);
  std::error_code ignored;
  if (!log || std::filesystem::is_directory(path, ignored)) {
    fprintf(stderr, "rotad: cannot read the event log %s: %s\n", path.c_str(), strerror(log ? EISDIR : errno));
    return 1;
  }
  const rota::scheduler::Replay result = rota::scheduler::replay(log);
  if (!result.problem.empty()) {
    fprintf(stderr, "rotad: %s, %s\n", path.c_str(), result.problem.c_str());
    return 1;
  }
  printf("%llu events, %llu decisions: all as recorded", static_cast<unsigned long long>(result.events),
         static_cast<unsigned long long>(result.decisions));
  if (result.broken_off != 0) {
    printf("; the log breaks off within line %llu", static_cast<unsigned long long>(result.broken_off));
  }
  putchar('\n');
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{"rotad: many CUDA programs take turns on the GPUs of this machine"};
  rota::server::Options options;
  std::string mode = "automatic";
  std::string quantum = "automatic";
  std::string grace = "10s";
  std::string level = "info";
  double idle_exit = 0;
  int ready = -1;
  app.add_option("--socket", options.socket,
                 "where to listen (default: ROTA_SOCKET, else /run/rota/rotad.sock for "
                 "root and the user's own socket for others)");
  app.add_option("--control", options.control,
                 "where `rota control` changes settings (default: the socket's path with .control appended; for "
                 "/run/rota/rotad.sock /run/rota-control/control.sock). Never give it to a container");
  std::string config_file;
  app.add_option(
      "--config", config_file,
      "settings and limits, as scheduler/CONFIGURATION.md describes (default: /etc/rota/rotad.toml for root, "
      "~/.config/rota/rotad.toml for others, where there is one); options on the command line take precedence");
  CLI::Option* mode_option =
      app.add_option("--mode", mode, "automatic (together when the memory fits), exclusive or concurrent")
          ->check([](const std::string& text) {
            return parse_mode(text) ? std::string()
                                    : "'" + text + "' is not a mode: use automatic, exclusive or concurrent";
          });
  const auto duration = [](const std::string& text) {
    return parse_duration(text) ? std::string() : "'" + text + "' is not a duration above 0: use e.g. 100ms or 2s";
  };
  CLI::Option* quantum_option =
      app.add_option(
             "--quantum", quantum,
             "how long a program runs while others wait, e.g. 100ms or 2s, or automatic: long enough for what a "
             "hand-over costs; automatic mode then also measures whether turns or running all at once is "
             "better")
          ->check([](const std::string& text) {
            return rota::scheduler::parse_quantum(text)
                       ? std::string()
                       : "'" + text + "' is not a duration above 0: use e.g. 100ms or 2s, or automatic";
          });
  CLI::Option* grace_option =
      app.add_option("--grace", grace, "how long it may take to drain after that before others run at the same time")
          ->check(duration);
  std::string trust = "user";
  CLI::Option* trust_option =
      app.add_option(
             "--trust", trust,
             "which programs trust each other: they see each other, share sessions, take over each other's memory "
             "without the driver clearing it in between, and count as one user. Those of one user in one container "
             "(user), of one user in all containers (user-everywhere), or all (machine); none: as user, but no "
             "memory is taken over")
          ->check([](const std::string& text) {
            return rota::server::parse_trust(text)
                       ? std::string()
                       : "'" + text + "' is not a value of trust: use user, user-everywhere, machine or none";
          });
  app.add_option("--idle-exit", idle_exit, "exit after this many seconds without a program")
      ->check(CLI::Range(0.001, 1e9));
  app.add_option("--lock-directory", options.lock_directory,
                 "folder of the GPUs' lock files, the same for all daemons (default: ROTA_LOCK_DIRECTORY, else "
                 "/run/lock/rota or /tmp/rota-locks if it exists; GPUs are locked without it, too)")
      ->envname("ROTA_LOCK_DIRECTORY");
  app.add_option("--log", level, "error, warn, info or debug")
      ->check(CLI::IsMember({"error", "warn", "info", "debug"}));
  app.add_option("--event-log", options.event_log,
                 "record the scheduler's events and decisions in this file, at most 64 MiB");
  std::string recorded;
  app.add_option("--replay", recorded, "do not serve: replay this event log and compare the scheduler's decisions")
      ->excludes("--event-log");
  bool check = false;
  app.add_flag(
      "--check", check,
      "do not serve: read the configuration, and say what is wrong with it and what it names that is not there");
  app.add_option("--ready-fd", ready, "write a line to this descriptor once programs may connect")->group("");
  app.set_version_flag("--version", std::string("rotad ") + ROTA_VERSION);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("rotad: ") + error.what() + "; `rotad --help` says more\n";
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 1;
  }

  if (!recorded.empty()) return replay(recorded);
  rota::server::log::start(level);
  // A peer that is gone is an error of that send, not the end of the daemon.
  signal(SIGPIPE, SIG_IGN);
  // The same for a file that may not grow, under a limit on the size of files.
  signal(SIGXFSZ, SIG_IGN);
  // A line of the log must not stop a rotad in a terminal's background (stty tostop).
  signal(SIGTTOU, SIG_IGN);

  options.settings.mode = *parse_mode(mode);
  set_quantum(options.settings, *rota::scheduler::parse_quantum(quantum));
  options.settings.grace = *parse_duration(grace);
  options.trust = *rota::server::parse_trust(trust);
  if (config_file.empty()) config_file = rota::server::default_config();
  if (check) return check_config(config_file);
  if (!config_file.empty()) {
    const auto config = rota::server::read_config(config_file);
    if (!config) {
      fprintf(stderr, "rotad: %s\n", config.error().text.c_str());
      return 1;
    }
    if (mode_option->empty()) options.settings.mode = config->mode.value_or(options.settings.mode);
    if (quantum_option->empty() && config->quantum) set_quantum(options.settings, *config->quantum);
    if (grace_option->empty()) options.settings.grace = config->grace.value_or(options.settings.grace);
    if (trust_option->empty()) options.trust = config->trust.value_or(options.trust);
    options.visibility = config->visibility.value_or(options.visibility);
    options.limits = config->limits;
    warn_of_unknown_users(config_file, options.limits);
    warn_of_unknown_cgroups(config_file, options.limits);
  }
  if (idle_exit > 0) options.idle_exit = std::chrono::milliseconds(static_cast<long>(idle_exit * 1e3));
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread yet
  options.time_scale = rota::server::ModelledTime::scale_of(std::getenv("ROTA_SIM_TIME_SCALE"));
  if (options.socket.empty()) {
    const auto socket = default_socket();
    if (!socket) {
      fprintf(stderr, "rotad: %s\n", socket.error().text.c_str());
      return 1;
    }
    options.socket = *socket;
    warn_of_another(options.socket);
  }

  asio::io_context io(1);
  asio::signal_set signals(io, SIGTERM, SIGINT);
  asio::signal_set hangups(io, SIGHUP);
  auto server = rota::server::Server::open(io, options);
  if (!server) {
    fprintf(stderr, "rotad: %s\n", server.error().text.c_str());
    return 1;
  }
  signals.async_wait([&](std::error_code error, int) {
    if (error) return;
    (*server)->stop();
    io.stop();
  });
  log_hangups(hangups);
  (*server)->start();
  if (ready >= 0) {
    // The process that started rotad may be gone.
    if (write(ready, "ready\n", 6) < 0) rota::server::log::debug("nobody waits at --ready-fd {}", ready);
    close(ready);
  }
  (*server)->run();
  return 0;
} catch (const std::exception& error) {  // the machine has run out of descriptors or memory
  fprintf(stderr, "rotad: %s\n", error.what());
  return 1;
}
