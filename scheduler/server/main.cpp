// rotad: decides which program may use which GPU, and when.
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
#include <optional>

#include "scheduler/address/socket_path.h"
#include "scheduler/address/started_by_run.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/base/result.h"
#include "scheduler/log/event_log.h"
#include "scheduler/server/config.h"
#include "scheduler/server/guarded.h"
#include "scheduler/server/limits.h"
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

// A terminal that closes also sends SIGHUP, which must not end everybody's turns.
void reload_at_hangups(asio::signal_set& hangups, rota::server::Server& server) {
  hangups.async_wait([&hangups, &server](std::error_code error, int) {
    if (error) return;
    rota::server::guarded("read the configuration again", [&] { server.reload(); });
    reload_at_hangups(hangups, server);
  });
}

// Programs use the first rotad that they find: one at a later place than this one's does not matter.
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

// The command line's part of the configuration: nothing for options that are not given.
struct CommandLine {
  std::string file;
  std::optional<rota::scheduler::Mode> mode;
  std::optional<std::chrono::nanoseconds> quantum;
  std::optional<std::chrono::nanoseconds> grace;
  std::optional<std::chrono::nanoseconds> memory_wait;
  std::optional<rota::server::Trust> trust;
};

rota::Result<rota::server::Configuration> configuration_of(const CommandLine& said) {
  rota::server::Configuration all;
  all.file = said.file.empty() ? rota::server::default_config() : said.file;
  rota::Result<rota::server::Config> file = rota::server::Config();
  if (!all.file.empty()) file = rota::server::read_config(all.file);
  if (!file) return file.error();
  all.settings.mode = said.mode.value_or(file->mode.value_or(all.settings.mode));
  set_quantum(all.settings, said.quantum.value_or(file->quantum.value_or(std::chrono::nanoseconds{})));
  all.settings.grace = said.grace.value_or(file->grace.value_or(all.settings.grace));
  all.trust = said.trust.value_or(file->trust.value_or(all.trust));
  all.visibility = file->visibility.value_or(all.visibility);
  all.gpus = file->gpus;
  all.limits = std::move(file->limits);
  all.limits.memory_wait = said.memory_wait ? said.memory_wait : file->memory_wait;
  all.metrics = std::move(file->metrics);
  return all;
}

// Reads the configuration as a rotad would that starts now, and serves nothing.
int check_config(const CommandLine& said) {
  const auto configuration = configuration_of(said);
  if (!configuration) {
    fprintf(stderr, "rotad: %s\n", configuration.error().text.c_str());
    return 1;
  }
  if (configuration->file.empty()) {
    printf("there is no rotad.toml: rotad would start with its defaults\n");
    return 0;
  }
  for (const std::string& line : rota::server::warnings_about(*configuration)) rota::server::log::warn("{}", line);
  printf("%s can be read\n", configuration->file.c_str());
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
  CommandLine said;
  app.add_option(
      "--config", said.file,
      "settings and limits, as scheduler/CONFIGURATION.md describes (default: /etc/rota/rotad.toml for root, "
      "$XDG_CONFIG_HOME/rota/rotad.toml or ~/.config/rota/rotad.toml for others, where there is one); options on the "
      "command line take precedence");
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
  std::string memory_wait = "60s";
  CLI::Option* memory_wait_option =
      app.add_option("--memory-wait", memory_wait,
                     "how long an allocation waits for other programs to free memory that cannot be evicted, or to "
                     "end, before it is refused; 0: it is refused at once")
          ->check([](const std::string& text) {
            return rota::scheduler::parse_wait(text) ? std::string()
                                                     : "'" + text + "' is not a duration: use e.g. 500ms, 60s or 0";
          });
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
      "do not serve: read the configuration, and say what is wrong with it and what it names that does not exist");
  app.add_option(rota::protocol::kReadyOption, ready, "write a line to this descriptor once programs may connect")
      ->group("");
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
  rota::server::log::start(level, !check);
  // A peer that has ended is an error of that send, not the end of the daemon.
  signal(SIGPIPE, SIG_IGN);
  // The same for a file that may not grow, under a limit on the size of files.
  signal(SIGXFSZ, SIG_IGN);
  // A line of the log must not stop a rotad in a terminal's background (stty tostop).
  signal(SIGTTOU, SIG_IGN);

  if (!mode_option->empty()) said.mode = parse_mode(mode);
  if (!quantum_option->empty()) said.quantum = rota::scheduler::parse_quantum(quantum);
  if (!grace_option->empty()) said.grace = parse_duration(grace);
  if (!memory_wait_option->empty()) said.memory_wait = rota::scheduler::parse_wait(memory_wait);
  if (!trust_option->empty()) said.trust = rota::server::parse_trust(trust);
  if (check) return check_config(said);
  options.reread = [said] { return configuration_of(said); };
  auto configuration = options.reread();
  if (!configuration) {
    fprintf(stderr, "rotad: %s\n", configuration.error().text.c_str());
    return 1;
  }
  static_cast<rota::server::Configuration&>(options) = std::move(*configuration);
  for (const std::string& line : rota::server::warnings_about(options)) rota::server::log::warn("{}", line);
  if (idle_exit > 0) options.idle_exit = std::chrono::milliseconds(static_cast<long>(idle_exit * 1e3));
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread yet
  options.time_scale = rota::server::ModelledTime::scale_of(std::getenv("ROTA_SIM_TIME_SCALE"));
  auto inherited = rota::server::take_inherited();
  if (!inherited) {
    fprintf(stderr, "rotad: %s\n", inherited.error().text.c_str());
    return 1;
  }
  // The paths of inherited listeners cannot be chosen.
  const auto is_there = [](const auto& listener, std::string& path, const char* option) {
    if (!listener.socket) return true;
    if (path.empty()) path = listener.path;
    if (path == listener.path) return true;
    fprintf(stderr, "rotad: %s is %s, and the listener that rotad was given is at %s\n", option, path.c_str(),
            listener.path.c_str());
    return false;
  };
  if (!is_there(inherited->clients, options.socket, "--socket")) return 1;
  if (!is_there(inherited->control, options.control, "--control")) return 1;
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
  auto server = rota::server::Server::open(io, options, std::move(*inherited));
  if (!server) {
    fprintf(stderr, "rotad: %s\n", server.error().text.c_str());
    return 1;
  }
  signals.async_wait([&](std::error_code error, int number) {
    if (error) return;
    if (number == SIGTERM) {
      rota::server::guarded("leave books to the next rotad", [&] { (*server)->leave_books_to_next(); });
    }
    (*server)->stop();
    io.stop();
  });
  reload_at_hangups(hangups, **server);
  (*server)->start();
  if (ready >= 0) {
    // The process that started rotad may have ended.
    if (write(ready, "ready\n", 6) < 0)
      rota::server::log::debug("nobody waits at {} {}", rota::protocol::kReadyOption, ready);
    close(ready);
  }
  (*server)->run();
  return 0;
} catch (const std::exception& error) {  // the machine has run out of descriptors or memory
  fprintf(stderr, "rotad: %s\n", error.what());
  return 1;
}
