// rotad, and the ROTA_* variables: what is set, what is misspelt, what is refused.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "scheduler/address/socket_path.h"
#include "scheduler/base/byte_size.h"
#include "scheduler/core/settings.h"
#include "tools/rota/doctor/findings.h"
#include "tools/rota/status/uncovered.h"

namespace rota::doctor {
namespace {

// Every variable that a part of rota reads; the simulated GPU's and the tests' among them. tests/pages.py compares them
// with scheduler/CONFIGURATION.md.
constexpr std::array kVariables = {
    "ROTA_SOCKET",
    "ROTA_SOCKET_FOUND",
    "ROTA_MACHINE_SOCKET",
    "ROTA_SESSION",
    "ROTA_SILENT_ROTAD",
    "ROTA_GANG",
    "ROTA_MEMORY",
    "ROTA_MEMORY_SMALL",
    "ROTA_MOVE_OUT",
    "ROTA_OVERSUBSCRIBE",
    "ROTA_GPU_MEM_LIMIT",
    "ROTA_REAL_LIBCUDA",
    "ROTA_OFF",
    "ROTA_WAIT",
    "ROTA_LOG",
    "ROTA_TRACE",
    "ROTA_TRACE_MAX_BYTES",
    "ROTA_REPORT",
    "ROTA_REPORT_OUTER",
    "ROTA_ADMISSION",
    "ROTA_CI_GPUS",
    "ROTA_CI_REPEAT",
    "ROTA_STACK_SIGNAL",
    "ROTA_LOCK_DIRECTORY",
    "ROTA_CACHE",
    "ROTA_CHECK_REACHED",
    "ROTA_SIM_STATE",
    "ROTA_SIM_MEMORY",
    "ROTA_SIM_GPUS",
    "ROTA_SIM_CONTEXT_BYTES",
    "ROTA_SIM_KERNELS",
    "ROTA_SIM_TIME_SCALE",
    "ROTA_SIM_DRIVER_VERSION",
    "ROTA_SIM_LOG",
    "ROTA_SIM_PROFILE",
    "ROTA_SIM_CLOCK",
    "ROTA_SIM_FAULTS",
    "ROTA_SIM_UNREGISTERED",
    "ROTA_SIM_WRITTEN",
    "ROTA_SIM_ACTIVITY",
    "ROTA_SIM_ACTIVITY_MAX_BYTES",
    "ROTA_SIM_MUTATIONS",
    "ROTA_BUILD",
    "ROTA_CLANG",
};

// The edit distance: how many letters have to be inserted, removed or replaced.
std::size_t distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= from.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (from[i - 1] == to[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

bool known_variable(const std::string& name) {
  return std::find(kVariables.begin(), kVariables.end(), name) != kVariables.end();
}

void judge_unreachable(const DaemonFacts& daemon, const nlohmann::json& values, Findings& findings) {
  Finding finding{"rotad", Level::kProblem,
                  fmt::format("cannot talk to a rotad at {}: {}", daemon.socket, strerror(daemon.error)),
                  "set ROTA_SOCKET to another path, or ask whoever runs that rotad", values};
  if (daemon.error == EACCES) {
    finding.text = fmt::format("you may not connect to the rotad at {}", daemon.socket);
    finding.remedy = "ask who runs it for access to its socket, or set ROTA_SOCKET to use another one";
  } else if (daemon.error == EPERM) {
    finding.text = fmt::format("another user owns the folder of {} or can write to it", daemon.socket);
    finding.remedy = "remove the folder, or set ROTA_SOCKET";
  } else if (daemon.error == EPROTOTYPE) {
    finding.text = fmt::format("the process that listens at {} is not rotad", daemon.socket);
    finding.remedy = "set ROTA_SOCKET to another path";
  } else if (daemon.error == ENAMETOOLONG) {
    finding.text = "ROTA_SOCKET is longer than a path may be (4095 bytes)";
    finding.remedy = "set ROTA_SOCKET to a shorter path";
  }
  findings.push_back(finding);
}

// GPUs on which programs of this user's rotad have no turns. The machine's rotad takes such a GPU over when it is
// needed.
void judge_elsewhere(const DaemonFacts& daemon, Findings& findings) {
  for (const tool::GpuHolder& holder : daemon.elsewhere) {
    const std::string who =
        fmt::format("another rotad, of {} (pid {}) at {}, has {}", holder.user, holder.pid, holder.socket, holder.gpu);
    Finding finding{"rotad.elsewhere",
                    Level::kWarning,
                    who + ": your programs have no turns there",
                    fmt::format("ask for one rotad for all users, which root starts: rotad --socket {}; programs then "
                                "move to it by themselves",
                                protocol::kSystemSocket),
                    {{"gpu", holder.gpu},
                     {"pid", holder.pid},
                     {"user", holder.user},
                     {"socket", holder.socket},
                     {"programs", holder.programs},
                     {"machine", holder.machine},
                     {"file", holder.file}}};
    if (holder.how != tool::Holding::kAnswers) {
      const auto [what, remedy] = tool::silent_text(holder);
      finding.text = fmt::format("{}: {}: your programs have no turns there", holder.gpu, what);
      finding.remedy = remedy;
    } else if (daemon.error == 0 && daemon.socket == protocol::machine_socket()) {
      finding.level = Level::kNote;
      finding.text = who + ": its programs move to the machine's rotad as soon as that one needs it";
      finding.remedy = "nothing has to be done";
    } else if (holder.machine) {
      finding.text = who + ", which is the machine's";
      finding.remedy = "unset ROTA_SOCKET: programs then find it first; in a container, mount the folder of its socket";
    } else if (holder.uid == geteuid()) {
      finding.text = who + ": programs of any other rotad have no turns there";
      finding.remedy = fmt::format("set ROTA_SOCKET={}, or end that rotad", holder.socket);
    }
    findings.push_back(finding);
  }
}

}  // namespace

void judge_daemon(const Facts& facts, Findings& findings) {
  const DaemonFacts& daemon = facts.daemon;
  judge_elsewhere(daemon, findings);
  nlohmann::json values = {{"socket", daemon.socket}, {"reachable", daemon.error == 0}, {"looked_at", daemon.places}};
  if (!daemon.skipped.empty()) {
    findings.push_back({"rotad.place", Level::kWarning, daemon.skipped,
                        "remove that folder (its owner or root can), or set ROTA_SOCKET", values});
  }
  if (!daemon.uncovered.empty()) {
    findings.push_back({"session.uncovered",
                        Level::kWarning,
                        fmt::format("in a session, but without rota: {}", fmt::join(daemon.uncovered, ", ")),
                        fmt::format("{}", fmt::join(daemon.uncovered_remedies, "; ")),
                        {{"programs", daemon.uncovered}}});
  }
  const bool absent = daemon.error == ENOENT || daemon.error == ECONNREFUSED || daemon.error == ENOTDIR;
  if (absent && daemon.program_error != 0) {
    findings.push_back({"rotad", Level::kProblem,
                        fmt::format("no rotad answers at {}, and {} cannot be started: {}",
                                    fmt::join(daemon.places, ", "), daemon.program, strerror(daemon.program_error)),
                        "in a container, mount /run/rota of a host on which rotad runs; else install rota again: rotad "
                        "belongs in the same folder as rota",
                        values});
    return;
  }
  if (absent) {
    const auto wait = facts.variables.find("ROTA_WAIT");
    const bool waits = wait != facts.variables.end() && wait->second == "1";
    findings.push_back({"rotad", waits ? Level::kWarning : Level::kNote,
                        fmt::format("no rotad answers at {}{}", fmt::join(daemon.places, ", "),
                                    waits ? ", and ROTA_WAIT=1 makes programs wait for one" : ""),
                        "`rota run` starts one for you; for all users of this machine run as root: rotad --socket "
                        "/run/rota/rotad.sock",
                        values});
    return;
  }
  if (daemon.error != 0) return judge_unreachable(daemon, values, findings);
  if (daemon.other_protocol != 0) {
    findings.push_back({"rotad.version",
                        Level::kProblem,
                        fmt::format("the rotad at {} speaks version {} of the protocol, this rota version {}",
                                    daemon.socket, daemon.other_protocol, daemon.protocol),
                        "install both from the same release, and restart rotad",
                        {{"protocol", daemon.protocol}, {"daemon_protocol", daemon.other_protocol}}});
    return;
  }
  if (!daemon.silent.empty()) {
    findings.push_back({"rotad", Level::kProblem, daemon.silent, "then run `rota doctor` again", values});
    return;
  }
  if (!daemon.answered) {
    findings.push_back({"rotad", Level::kProblem,
                        fmt::format("the rotad at {} accepts the connection but does not answer", daemon.socket),
                        "see whether it is stopped or is not rotad at all; end it, and `rota run` starts another",
                        values});
    return;
  }
  values.update({{"pid", daemon.pid},
                 {"mode", daemon.mode},
                 {"quantum_ns", daemon.quantum_ns},
                 {"clients", daemon.clients},
                 {"version", daemon.version},
                 {"protocol", daemon.protocol}});
  findings.push_back(
      {"rotad", Level::kOk,
       fmt::format("rotad {} (pid {}) at {}: {} mode, quantum {}, {}", daemon.version, daemon.pid, daemon.socket,
                   daemon.mode, scheduler::quantum_text(std::chrono::nanoseconds(daemon.quantum_ns)),
                   counted(daemon.clients, "program")),
       "", values});
  if (daemon.version != facts.version) {
    findings.push_back({"rotad.version",
                        Level::kWarning,
                        fmt::format("rotad belongs to rota {}, this is rota {}",
                                    daemon.version.empty() ? "before 0.1.0's doctor" : daemon.version, facts.version),
                        "restart rotad from this release when its programs have ended",
                        {{"version", facts.version}, {"daemon_version", daemon.version}}});
  }
  if (!daemon.locks_gone.empty()) {
    findings.push_back({"rotad.locks",
                        Level::kWarning,
                        fmt::format("something has removed {}: a rotad of another container may take the GPU, too",
                                    fmt::join(daemon.locks_gone, ", ")),
                        "rotad makes the files again where it can: see that its user may write to their folder",
                        {{"files", daemon.locks_gone}}});
  }
  // rotad needs three descriptors for each program, and a hundred of its own.
  constexpr std::uint64_t kEnoughDescriptors = 1024;
  if (daemon.descriptors != 0 && daemon.descriptors < kEnoughDescriptors) {
    findings.push_back(
        {"rotad.limits",
         Level::kWarning,
         fmt::format("rotad may have only {} open files, a limit of the program that started it: later programs may "
                     "get no turns",
                     daemon.descriptors),
         "`rota control stop` when its programs have ended, and start the next one where `ulimit -Hn` is higher; or "
         "run as root: rotad --socket /run/rota/rotad.sock",
         {{"open_files", daemon.descriptors}}});
  }
}

std::string nearest_variable(std::string_view name) {
  std::string best;
  // At a larger distance it is another word.
  std::size_t least = name.size() / 3 + 1;
  for (const std::string_view candidate : kVariables) {
    const std::size_t letters = distance(name, candidate);
    if (letters < least) {
      least = letters;
      best = candidate;
    }
  }
  return best;
}

void judge_settings(const Facts& facts, Findings& findings) {
  const std::size_t before = findings.size();
  nlohmann::json values = nlohmann::json::object();
  std::string set;
  for (const auto& [name, value] : facts.variables) {
    if (name.rfind("ROTA_", 0) != 0) continue;
    if (known_variable(name)) {
      values[name] = value;
      set += fmt::format("{}{}={}", set.empty() ? "" : ", ", name, value);
      continue;
    }
    const std::string meant = nearest_variable(name);
    findings.push_back({"settings.unknown",
                        Level::kWarning,
                        fmt::format("{} is not one of rota's variables", name),
                        meant.empty() ? fmt::format("unset {}; scheduler/CONFIGURATION.md lists them", name)
                                      : fmt::format("did you mean {}?", meant),
                        {{"variable", name}, {"nearest", meant}}});
  }
  // What the shim itself refuses: "ROTA_X is 'value': what it accepts; what happens". No other code has to know its
  // rules.
  for (const std::string& line : facts.preload.trial.lines) {
    const std::string name = line.substr(0, line.find_first_of(" ="));
    if (name == "ROTA_REAL_LIBCUDA" || !known_variable(name)) continue;
    const std::size_t colon = line.find("': ");
    findings.push_back({"settings.invalid",
                        Level::kWarning,
                        colon == std::string::npos ? line : line.substr(0, colon + 1),
                        colon == std::string::npos ? fmt::format("change {}", name) : line.substr(colon + 3),
                        {{"variable", name}}});
  }
  const auto wait = facts.variables.find("ROTA_WAIT");
  if (wait != facts.variables.end() && !wait->second.empty() && wait->second != "0" && wait->second != "1") {
    findings.push_back({"settings.invalid",
                        Level::kWarning,
                        fmt::format("ROTA_WAIT is '{}'", wait->second),
                        "set it to 1 to wait for a rotad, or unset it: programs do not wait with any other value",
                        {{"variable", "ROTA_WAIT"}}});
  }
  const auto off = facts.variables.find("ROTA_OFF");
  if (off != facts.variables.end() && !off->second.empty() && off->second != "0") {
    findings.push_back({"settings.off",
                        Level::kWarning,
                        "ROTA_OFF is set: programs run without rota",
                        "unset it for turns, limits and traces",
                        {{"variable", "ROTA_OFF"}}});
  }
  const auto most = facts.variables.find("ROTA_TRACE_MAX_BYTES");
  if (most != facts.variables.end() && !parse_bytes(most->second)) {
    findings.push_back({"settings.invalid",
                        Level::kWarning,
                        fmt::format("ROTA_TRACE_MAX_BYTES is '{}'", most->second),
                        "use bytes with an optional K, M, G or T, as in 64M; 1G is used",
                        {{"variable", "ROTA_TRACE_MAX_BYTES"}}});
  }
  if (findings.size() == before) {
    findings.push_back({"settings", Level::kOk, set.empty() ? "no ROTA_* variable is set" : set, "", values});
  }
}

}  // namespace rota::doctor
