// From a command line to a running program: environment, preloads, daemon, exec.
#include "tools/rota/run/launch.h"

#include <fmt/format.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>

#include "scheduler/address/socket_path.h"
#include "scheduler/base/byte_size.h"
#include "tools/rota/report/format.h"
#include "tools/rota/run/daemon.h"
#include "tools/rota/run/everywhere.h"
#include "tools/rota/run/executable.h"
#include "tools/rota/run/growing_files.h"
#include "tools/rota/run/listed_path.h"
#include "tools/rota/run/output.h"
#include "tools/rota/run/preload.h"

namespace rota::tool {
namespace {

constexpr int kNotFound = 127;
constexpr int kNotExecutable = 126;
constexpr int kNotStarted = 125;

void say(const std::string& line) {
  write_message("rota: " + report::printable(line) + "\n");
}

// Prints a line of little interest to most users: only at the log level at which the shims show such lines.
void mention(const std::string& line) {
  const char* level = getenv("ROTA_LOG");
  if (level != nullptr && (strcmp(level, "info") == 0 || strcmp(level, "debug") == 0)) say(line);
}

std::string beside(const std::string& path, const char* name) {
  return path.substr(0, path.rfind('/') + 1) + name;
}

// Opens a session, unless the program is in one already and has no limits to add. The session's limit on a GPU is also
// set as each process's limit, which applies if no rotad enforces the session's.
void open_session(protocol::SessionEntry session) {
  const char* outer = getenv("ROTA_SESSION");
  const bool inside = outer != nullptr && *outer != '\0';
  if (inside && session == protocol::SessionEntry{}) return;
  std::random_device random;
  session.id = fmt::format("{:08x}{:08x}", random(), random());
  const std::string list = (inside ? std::string(outer) + ":" : "") + protocol::session_text(session);
  setenv("ROTA_SESSION", list.c_str(), 1);
  if (session.device_bytes == protocol::kUnlimited) return;
  const char* limit = getenv("ROTA_GPU_MEM_LIMIT");
  const auto before = limit == nullptr ? std::nullopt : parse_bytes(limit);
  const std::uint64_t lowest = before ? std::min(*before, session.device_bytes) : session.device_bytes;
  setenv("ROTA_GPU_MEM_LIMIT", std::to_string(lowest).c_str(), 1);
}

std::string innermost_session() {
  const char* const list = getenv("ROTA_SESSION");
  const auto sessions = protocol::parse_sessions(list == nullptr ? "" : list);
  return sessions && !sessions->empty() ? sessions->back().id : "";
}

// Sets up this process's environment for the program. Returns 0, or the exit code after a line that says why not.
int prepare(const LaunchOptions& options) {
  const GrowingFiles growing;
  const Executable executable = inspect_command(options.command[0]);
  if (executable.error == ENOENT) {
    say(not_found_text(options.command[0]));
    return kNotFound;
  }
  if (executable.error != 0) {
    say(fmt::format("{}: {}", executable.path, strerror(executable.error)));
    return kNotExecutable;
  }
  for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
  if (!options.share) return 0;
  // As the preloads read it (runtime/preload/off.h).
  if (const char* off = getenv("ROTA_OFF"); off != nullptr && *off != '\0' && strcmp(off, "0") != 0) {
    say("ROTA_OFF is set: the program runs without rota; unset it for turns, limits and traces");
    return 0;
  }
  if (const char* limit = getenv("ROTA_GPU_MEM_LIMIT"); limit != nullptr && *limit != '\0' && !parse_bytes(limit)) {
    say(fmt::format(
        "ROTA_GPU_MEM_LIMIT is '{}', which is not a size: use bytes with an optional K, M, G or T, as in 8G, or "
        "unset it; the program is not started",
        limit));
    return kNotStarted;
  }
  if (!executable.uncovered.empty()) {
    const bool limit_given = getenv("ROTA_GPU_MEM_LIMIT") != nullptr ||
                             options.session.device_bytes != protocol::kUnlimited ||
                             options.session.host_bytes != protocol::kUnlimited;
    say(fmt::format("{} is {}: rota cannot be preloaded into it, so it runs without rota{}", executable.interpreter,
                    executable.uncovered, limit_given ? ", and without the limit" : ""));
    // A 64-bit library in a 32-bit program's list causes an error message at every start. In other cases the programs
    // that it starts are covered.
    if (!executable.preload_inherited) return 0;
  }
  std::vector<std::string> libraries = {shim_directory() + "/librota.so"};
  libraries.insert(libraries.end(), options.preloads.begin(), options.preloads.end());
  for (std::string& library : libraries) {
    if (access(library.c_str(), R_OK) != 0) {
      say(fmt::format("{}: {}: the program runs without rota; install rota again", library, strerror(errno)));
      return 0;
    }
    auto listed = listed_path(library);
    if (!listed) {
      say(fmt::format("{} cannot be preloaded from there: {}; the program runs without rota", library,
                      listed.error().text));
      return 0;
    }
    library = std::move(*listed);
  }
  // The environment is now the program's, so the driver is searched for as the program will do.
  const std::string shim = libraries.front();
  const Preload preload = choose_preload(shim);
  libraries.front() = preload.library;
  if (!preload.note.empty()) mention(preload.note);
  open_session(options.session);
  // Without a limit NVML reports the same with and without it, so no process should pay for loading it.
  if (const char* limit = getenv("ROTA_GPU_MEM_LIMIT"); limit != nullptr && *limit != '\0') {
    const Preload nvml = choose_nvml_preload(beside(shim, "librota-nvml.so"));
    if (!nvml.note.empty()) mention(nvml.note);
    if (!nvml.library.empty()) libraries.insert(libraries.begin() + 1, nvml.library);
  }
  Daemon daemon;
  if (options.daemon) {
    // A program whose ROTA_SOCKET was not chosen but found changes to the machine's rotad when that takes the GPU over.
    const bool chosen = protocol::socket_is_chosen();
    daemon = find_or_start_daemon({options.mode, options.quantum});
    if (!daemon.socket.empty()) {
      setenv("ROTA_SOCKET", daemon.socket.c_str(), 1);
      if (chosen) {
        unsetenv("ROTA_SOCKET_FOUND");
      } else {
        setenv("ROTA_SOCKET_FOUND", daemon.socket.c_str(), 1);
      }
    }
    if (!daemon.problem.empty()) {
      say(daemon.problem + (daemon.socket.empty() ? "; the program does not take turns" : ""));
    }
  }
  if (options.choose_gpus) {
    const auto chosen = options.choose_gpus(daemon, innermost_session());
    if (!chosen) {
      say(chosen.error().text + "; the program is not started");
      return kNotStarted;
    }
    if (!chosen->empty()) setenv("CUDA_VISIBLE_DEVICES", chosen->c_str(), 1);
  }
  const char* inherited = getenv("LD_PRELOAD");
  setenv("LD_PRELOAD", preload_list(inherited == nullptr ? "" : inherited, libraries, executable.sanitizer).c_str(), 1);
  if (options.everywhere) {
    if (const std::string problem = preload_everywhere(); !problem.empty()) say(problem);
  }
  return 0;
}

int execute(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int error = errno;
  // ENOENT now refers to the interpreter that the file names.
  say(fmt::format("{}: cannot be executed: {}", command[0], strerror(error)));
  return error == ENOENT ? kNotFound : kNotExecutable;
}

}  // namespace

std::string preload_list(const std::string& inherited, const std::vector<std::string>& ours,
                         const std::string& sanitizer) {
  std::vector<std::string> present;
  // The loader separates by colons and by spaces.
  for (std::string::size_type begin = 0; begin < inherited.size();) {
    const auto end = std::min(inherited.find_first_of(": ", begin), inherited.size());
    if (end > begin) present.push_back(inherited.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<std::string> list;
  const auto add = [&list](const std::string& library) {
    if (std::find(list.begin(), list.end(), library) == list.end()) list.push_back(library);
  };
  if (!sanitizer.empty()) {
    // It may be listed already, under another path; then that one comes first.
    const std::string stem = sanitizer.substr(0, sanitizer.find(".so"));
    const auto found = std::find_if(present.begin(), present.end(), [&](const std::string& library) {
      return library.find(stem) != std::string::npos;
    });
    add(found == present.end() ? sanitizer : *found);
  }
  for (const std::string& library : ours) add(library);
  // The preload of an outer `rota run`, which may be fitted to another driver, is replaced.
  const auto file_name = [](const std::string& path) { return path.substr(path.rfind('/') + 1); };
  for (const std::string& library : present) {
    const bool replaced = std::ranges::any_of(
        ours, [&](const std::string& own) { return file_name(own) == file_name(library) && own != library; });
    if (!replaced) add(library);
  }
  std::string joined;
  for (const std::string& library : list) joined += (joined.empty() ? "" : ":") + library;
  return joined;
}

int run_in_place(const LaunchOptions& options) {
  if (const int code = prepare(options); code != 0) return code;
  return execute(options.command);
}

std::string own_executable() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length > 0) return {path, static_cast<std::size_t>(length)};
  // Where there is no /proc: what was executed, which may be relative to the working directory.
  const auto* const executed = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  return executed != nullptr && realpath(executed, path) != nullptr ? path : "";
}

std::string shim_directory() {
  std::string folder = own_executable();
  for (int up = 0; up < 2; ++up) folder = folder.substr(0, folder.rfind('/'));
  // As in the build tree and most prefixes; otherwise where this build installs libraries (lib64/rota, …).
  const std::string usual = folder + "/lib/rota";
  return access(usual.c_str(), F_OK) == 0 ? usual : folder + "/" ROTA_SHIM_PLACE;
}

}  // namespace rota::tool
