#include "tools/rota/doctor/gather.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "generated/driver_releases.h"
#include "generated/driver_symbols.h"
#include "scheduler/address/socket_path.h"
#include "scheduler/address/unresponsive.h"
#include "scheduler/base/descriptor.h"
#include "scheduler/core/settings.h"
#include "tools/rota/doctor/child.h"
#include "tools/rota/report/format.h"
#include "tools/rota/run/executable.h"
#include "tools/rota/run/launch.h"
#include "tools/rota/run/preload.h"
#include "tools/rota/status/request.h"
#include "tools/rota/status/uncovered.h"

extern char** environ;

namespace rota::doctor {
namespace {

std::map<std::string, std::string> gather_variables() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    if (text.rfind("ROTA_", 0) != 0 && text.rfind("CUDA_", 0) != 0) continue;
    found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

// The NVML that belongs to this driver: the file next to it, or else the one that the loader finds. Empty if there is
// none next to a driver that ROTA_REAL_LIBCUDA names: the loader's NVML may belong to another driver.
std::string nvml_path(const DriverFacts& driver) {
  for (const std::string& path : {driver.path, driver.file}) {
    const std::string beside = std::filesystem::path(path).parent_path() / "libnvidia-ml.so.1";
    if (!path.empty() && access(beside.c_str(), R_OK) == 0) return beside;
  }
  return driver.place == tool::kPlaceVariable ? "" : "libnvidia-ml.so.1";
}

TrialFacts try_out(const Facts& facts, std::chrono::milliseconds limit) {
  const std::string& preload = facts.preload.library;
  for (const ShimFile& file : facts.preload.files) {
    if (file.required && file.error != 0) return {};
  }
  if (!facts.preload.problem.empty()) return {};
  // A driver that crashes or hangs by itself does the same under rota, and the probe has reported it. The trial of rota
  // then goes without a driver.
  const bool driver_answers = facts.probe.end == End::kFinished && facts.probe.version.has_value();
  const auto log = facts.variables.find("ROTA_LOG");
  const bool log_valid = log == facts.variables.end() || log->second.empty() || log->second == "error" ||
                         log->second == "warn" || log->second == "info" || log->second == "debug";
  ChildCommand child;
  child.arguments = {"doctor-trial", "--preload", preload, "--directory", facts.preload.directory};
  // If `rota` itself is built with a sanitizer, the sanitizer's runtime must be preloaded first.
  const std::string sanitizer = tool::inspect_command("/proc/self/exe").sanitizer;
  child.environment = {{"LD_PRELOAD", tool::preload_list("", {preload}, sanitizer)}, {"ROTA_TRACE", std::nullopt}};
  if (log_valid) child.environment.emplace_back("ROTA_LOG", "warn");
  if (!driver_answers) child.environment.emplace_back("ROTA_REAL_LIBCUDA", "/nonexistent/libcuda.so.1");
  child.limit = limit;
  return trial_facts(run_child(child), driver_answers);
}

CommandFacts gather_command(const std::string& name) {
  const tool::Executable executable = tool::inspect_command(name);
  return {.name = name,
          .path = executable.path,
          .interpreter = executable.interpreter,
          .error = executable.error,
          .uncovered = executable.uncovered,
          .static_runtime = tool::has_static_cuda_runtime(executable.interpreter)};
}

// The protocol version of the daemon's answer, if this program does not speak that version; otherwise, or without an
// answer, 0.
int other_protocol(const protocol::SocketCandidate& candidate) {
  const Descriptor rotad(protocol::connect_socket(candidate));
  if (!rotad) return 0;
  const timeval patience{.tv_sec = 2, .tv_usec = 0};
  setsockopt(rotad.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  protocol::Message answer;
  int version = 0;
  if (tool::send_message(rotad.get(), protocol::Message{.kind = protocol::Kind::kStatus}) &&
      recv(rotad.get(), &answer, sizeof answer, 0) >= static_cast<ssize_t>(offsetof(protocol::Message, body)) &&
      answer.magic == protocol::kMagic &&
      (answer.version < protocol::kOldestVersion || answer.version > protocol::kVersion)) {
    version = answer.version;
  }
  return version;
}

// The soft limit on open files of a process; 0 if it is unlimited or cannot be read.
std::uint64_t open_files_limit(std::uint64_t pid) {
  std::ifstream limits("/proc/" + std::to_string(pid) + "/limits");
  std::uint64_t number = 0;
  for (std::string line; std::getline(limits, line);) {
    constexpr std::string_view kName = "Max open files";
    if (line.starts_with(kName)) std::istringstream(line.substr(kName.size())) >> number;
  }
  return number;
}

}  // namespace

ProbeFacts gather_probe(const std::string& driver, const std::string& nvml, std::chrono::milliseconds limit,
                        std::vector<std::pair<std::string, std::optional<std::string>>> environment) {
  ChildCommand child;
  child.arguments = {"doctor-probe", "--driver", driver};
  if (!nvml.empty()) child.arguments.insert(child.arguments.end(), {"--nvml", nvml});
  // The driver alone, without rota or any other preloaded library.
  child.environment = std::move(environment);
  child.environment.emplace_back("LD_PRELOAD", std::nullopt);
  child.limit = limit;
  return probe_facts(run_child(child), limit);
}

DaemonFacts gather_daemon(const std::vector<std::string>& gpus) {
  DaemonFacts facts;
  facts.protocol = protocol::kVersion;
  facts.program = std::filesystem::path(tool::own_executable()).parent_path() / "rotad";
  facts.program_error = access(facts.program.c_str(), X_OK) == 0 ? 0 : errno;
  const protocol::SocketCandidates candidates = protocol::socket_candidates();
  for (std::size_t i = 0; i < candidates.count; ++i) facts.places.emplace_back(candidates.list[i].path);
  const protocol::SocketSearch search = protocol::find_rotad();
  facts.socket = search.candidate.path;
  for (const tool::Uncovered& one : tool::uncovered_programs(facts.socket)) {
    constexpr std::size_t kMost = 100;
    facts.uncovered.push_back(
        fmt::format("pid {} ({}): {}", one.process, report::printable_beginning(one.command, kMost), one.why));
    if (std::ranges::find(facts.uncovered_remedies, one.remedy) == facts.uncovered_remedies.end()) {
      facts.uncovered_remedies.emplace_back(one.remedy);
    }
  }
  facts.error = search.error;
  facts.skipped = tool::skipped_text(search);
  const Descriptor rotad(search.descriptor);
  facts.elsewhere = tool::find_holders(gpus);
  if (!rotad) return facts;
  const tool::Answer answer = tool::ask_status(rotad.get());
  const std::optional<tool::Status>& status = answer.status;
  if (answer.silent) {
    const protocol::Listener listener = protocol::listener_of(rotad.get());
    facts.silent = protocol::unresponsive_text(facts.socket, listener);
    tool::leave_out(facts.elsewhere, static_cast<std::uint64_t>(listener.pid), facts.socket, {});
    return facts;
  }
  if (!status) {
    facts.other_protocol = other_protocol(search.candidate);
    return facts;
  }
  facts.answered = true;
  facts.version = status->daemon.rota_version;
  facts.mode = scheduler::mode_name(status->daemon.mode);
  facts.pid = status->daemon.pid;
  facts.quantum_ns = status->daemon.quantum_ns;
  facts.clients = status->programs.size();
  facts.descriptors = open_files_limit(facts.pid);
  tool::leave_out(facts.elsewhere, facts.pid, facts.socket, tool::served(*status));
  facts.locks_gone = tool::missing_locks(tool::served(*status));
  return facts;
}

Facts gather(const Options& options) {
  Facts facts;
  facts.version = ROTA_VERSION;
  facts.oldest_covered = kOldestCovered;
  facts.newest_covered = kNewestCovered;
  facts.known_functions = kSymbolCount;
  facts.variables = gather_variables();
  facts.driver = gather_driver();
  if (facts.driver.search == Search::kFound) {
    facts.probe = gather_probe(facts.driver.path, nvml_path(facts.driver), options.limit, {});
  }
  facts.preload = gather_preload();
  facts.preload.trial = try_out(facts, options.limit);
  std::vector<std::string> gpus;
  for (const GpuFacts& gpu : facts.probe.gpus) gpus.push_back(gpu.uuid);
  facts.daemon = gather_daemon(gpus);
  facts.host = gather_host();
  if (!options.command.empty()) facts.command = gather_command(options.command);
  return facts;
}

}  // namespace rota::doctor
