// `rota sim [--gpu h200x2] [--memory 16G] [--driver 12.4] … [--] command …`: a machine of simulated GPUs for one
// command. Everything that the machine needs is in a folder that is removed when the command ends: its state, which the
// command's processes share, the driver that appears as another version, and the socket of a rotad started inside. NVML
// shows the machine, too.
#include "tools/rota/sim/sim.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "scheduler/base/byte_size.h"
#include "scheduler/base/descriptor.h"
#include "tools/elf/elf.h"
#include "tools/rota/report/format.h"
#include "tools/rota/run/launch.h"
#include "tools/rota/run/listed_path.h"
#include "tools/rota/run/output.h"
#include "tools/rota/run/wait.h"
#include "tools/rota/try/output_folder.h"
#include "tools/simgpu/driver/entry/faults.h"
#include "tools/simgpu/pose.h"
#include "tools/simgpu/profile.h"
#include "tools/simgpu/state/layout.h"
#include "tools/simgpu/state/options.h"

namespace rota::tool {
namespace {

namespace fs = std::filesystem;

constexpr int kFailed = 125;  // rota's own status, as with env and timeout
constexpr int kMostGpus = 8;

struct SimOptions {
  std::string gpu;
  std::string profile;
  std::string memory;
  std::string driver;
  std::string state;
  std::string time_scale;
  std::string unregistered = "fail";
  bool virtual_clock = false;
  std::vector<std::string> kernels;
  std::vector<std::string> faults;
  std::vector<std::string> command;
};

int fail(const std::string& line) {
  write_message("rota sim: " + report::printable(line) + "\n");
  return kFailed;
}

// The paths in a form that can be in lists of paths: each itself, or a link to it in `folder`.
class ListedPaths {
 public:
  explicit ListedPaths(std::string folder) : folder_(std::move(folder)) {}
  // Empty if there can be no link.
  std::string operator()(const std::string& path) {
    if (fits_lists(path)) return path;
    const std::string link = fmt::format("{}/link-{}", folder_, ++links_);
    return symlink(path.c_str(), link.c_str()) == 0 ? link : "";
  }

 private:
  std::string folder_;
  int links_ = 0;
};

bool is_set(const char* variable) {
  const char* value = getenv(variable);
  return value != nullptr && *value != '\0';
}

std::string prepend(const std::string& folder, const char* variable) {
  return is_set(variable) ? folder + ":" + getenv(variable) : folder;
}

// Empty, or why the driver could not load kernels from there.
std::string kernels_problem(const std::string& path) {
  // Without a free descriptor nothing is known: the driver will report it.
  if (!Descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC)) && errno == EMFILE) return "";
  const auto exports = elf::read_exports(path);
  if (!exports) return exports.error().text;
  if (std::ranges::binary_search(exports->functions, "rota_sim_kernels")) return "";
  return path + " registers no kernels: it exports no rota_sim_kernels (include/rota/simgpu/kernel.h)";
}

// The same for what ROTA_SIM_KERNELS already lists. A name without a slash is left to the loader.
std::string inherited_kernels_problem() {
  std::istringstream list(is_set("ROTA_SIM_KERNELS") ? getenv("ROTA_SIM_KERNELS") : "");
  for (std::string path; std::getline(list, path, ':');) {
    if (path.find('/') == std::string::npos) continue;
    if (const std::string problem = kernels_problem(path); !problem.empty()) return "ROTA_SIM_KERNELS: " + problem;
  }
  return "";
}

// Empty, or why the driver could not keep the machine's state there. Creates nothing: the driver does.
std::string state_problem(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT && access(fs::path(path).parent_path().c_str(), W_OK | X_OK) == 0) return "";
    return fmt::format("cannot create {}: {}", path, strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) return path + " is not a regular file: name another one";
  const Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) return fmt::format("cannot open {}: {}", path, strerror(errno));
  struct {  // as SharedLayout begins
    uint64_t magic;
    uint32_t version;
  } start{};
  const bool complete = status.st_size == static_cast<off_t>(sizeof(sim::SharedLayout));
  if (complete)
    flock(file.get(), LOCK_SH);  // the process that creates it holds the lock; if it died, the file has zeros
  const bool read = pread(file.get(), &start, sizeof start, 0) >= 0;
  if (!read) return path + " cannot be read: name another file";
  const bool ours = start.magic == sim::kStateMagic;
  const bool usable = complete && (start.magic == 0 || (ours && start.version == sim::kStateVersion));
  if (status.st_size == 0 || usable) return "";
  if (ours) return path + " is the state of another version of simgpu: remove it or name another file";
  return path + " is not a state of simgpu: name another file";
}

// What the driver wrote to ROTA_SIM_LOG: a name at its first call, and each name with its number of calls when a
// process ends.
void report_unsimulated(const std::string& log) {
  std::map<std::string, unsigned long> calls;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    unsigned long count = 0;
    char name[128];
    if (std::sscanf(line.c_str(), "simgpu: not simulated: %127s", name) == 1) calls[name];
    if (std::sscanf(line.c_str(), "simgpu: calls that were not simulated: %127s %lu", name, &count) == 2) {
      calls[name] += count;
    }
  }
  if (calls.empty()) return;
  std::string list;
  for (const auto& [name, count] : calls) {
    list += (list.empty() ? "" : ", ") + name;
    if (count > 1) list += fmt::format(" ({} times)", count);
  }
  write_message(
      fmt::format("rota sim: these calls are not simulated and returned CUDA_ERROR_NOT_SUPPORTED: {}\n", list));
}

int simulate(SimOptions options) {
  const fs::path library_folder = fs::path(shim_directory()) / "simgpu";
  const std::string library = library_folder / "libcuda.so.1";
  if (access(library.c_str(), F_OK) != 0) return fail(library + " is missing: install rota again");

  // Absolute, since the command may change its working directory.
  std::vector<std::string*> paths = {&options.state, &options.profile};
  for (std::string& each : options.kernels) paths.push_back(&each);
  for (std::string* path : paths) {
    if (path->empty()) continue;
    std::error_code error;
    const fs::path absolute = fs::absolute(*path, error);
    if (error) {
      return fail(fmt::format("{}: no working directory: {}: use an absolute path", *path, error.message()));
    }
    *path = absolute.string();
  }
  if (!options.state.empty()) {
    if (const std::string problem = state_problem(options.state); !problem.empty()) return fail("--state: " + problem);
  }
  // Files that are named in lists of paths are in a folder whose path can be in one.
  const bool lists_own =
      !options.driver.empty() || !fits_lists(library) ||
      !std::ranges::all_of(options.kernels, [](const std::string& path) { return fits_lists(path); });
  std::vector<std::string> parents = attempt::temporary_folders();
  if (lists_own) std::erase_if(parents, [](const std::string& parent) { return !fits_lists(parent); });
  // The folder is removed however this machine ends: signals wait until there is a program to pass them on to, and if
  // this process is killed, its keeper or the next machine removes the folder.
  const TakenSignals signals;
  attempt::OutputFolder folder("rota-sim", parents);
  if (!folder.problem().empty()) return fail(folder.problem());
  // This machine has its own rotad: one that serves real GPUs must not be used here.
  const std::string state = options.state.empty() ? folder.path() + "/state" : options.state;
  const std::string socket = options.state.empty() ? folder.path() + "/rotad.sock" : state + ".rotad.sock";
  // Only the options define the machine: variables of another one that may be set are removed.
  for (const char* name :
       {"ROTA_SIM_PROFILE", "ROTA_SIM_GPUS", "ROTA_SIM_MEMORY", "ROTA_SIM_CONTEXT_BYTES", "ROTA_SIM_DRIVER_VERSION",
        "ROTA_SIM_CLOCK", "ROTA_SIM_TIME_SCALE", "ROTA_SIM_FAULTS", "ROTA_SIM_UNREGISTERED"}) {
    unsetenv(name);
  }
  LaunchOptions launch;
  launch.share = false;
  launch.command = options.command;
  const auto set = [&launch](const char* name, const std::string& value) {
    launch.environment.emplace_back(name, value);
  };

  std::string driver = library;
  if (!options.driver.empty()) {
    driver = folder.path() + "/libcuda.so.1";
    const int version = sim::parse_driver_version(options.driver);
    if (const std::string problem = sim::write_posed_driver(library, version, driver); !problem.empty()) {
      return fail(problem);
    }
  }
  ListedPaths in_lists(folder.path());
  const std::string listed_folder = in_lists(library_folder.string());
  if (listed_folder.empty()) return fail(fmt::format("cannot make a link in {}: {}", folder.path(), strerror(errno)));
  const std::string libraries = listed_folder + ":" + listed_folder + "/nvml";
  set("LD_LIBRARY_PATH", prepend(driver == library ? libraries : folder.path() + ":" + libraries, "LD_LIBRARY_PATH"));
  set("ROTA_REAL_LIBCUDA", driver);
  set("ROTA_SIM_STATE", state);
  set("ROTA_SOCKET", socket);
  // Only this machine's rotad has these GPUs.
  set("ROTA_LOCK_DIRECTORY", fs::path(state).parent_path());

  const SimulatedGpus gpus = options.gpu.empty() ? SimulatedGpus{} : *parse_simulated_gpus(options.gpu);
  if (!options.profile.empty() && !gpus.card.empty()) {
    return fail("--gpu names a card and --profile another: with --profile, --gpu is a number, such as x2");
  }
  const std::string card = gpus.card.empty() ? sim::profile_names().front() : gpus.card;
  const std::string profile = options.profile.empty() ? card : options.profile;
  if (auto loaded = sim::load_profile(profile); !loaded) return fail(loaded.error().text);
  set("ROTA_SIM_PROFILE", profile);
  if (!options.gpu.empty()) set("ROTA_SIM_GPUS", std::to_string(gpus.count));
  if (!options.memory.empty()) set("ROTA_SIM_MEMORY", options.memory);
  if (!options.time_scale.empty()) set("ROTA_SIM_TIME_SCALE", options.time_scale);
  if (options.virtual_clock) set("ROTA_SIM_CLOCK", "virtual");
  set("ROTA_SIM_UNREGISTERED", options.unregistered);
  // Messages about a machine that is already in use name these options, but only those that the user gave.
  std::string written;
  const auto wrote = [&written](const char* option, const std::string& value) {
    if (!value.empty()) written += fmt::format("{}{} {}", written.empty() ? "" : "\n", option, value);
  };
  wrote("--gpu", options.gpu);
  wrote("--profile", options.profile);
  wrote("--memory", options.memory);
  wrote("--time-scale", options.time_scale);
  set("ROTA_SIM_WRITTEN", written);

  std::string kernels = listed_folder + "/libsimkernels.so";
  for (const std::string& each : options.kernels) {
    const std::string listed = in_lists(each);
    if (listed.empty()) return fail(fmt::format("cannot make a link in {}: {}", folder.path(), strerror(errno)));
    kernels += ":" + listed;
  }
  if (const std::string problem = inherited_kernels_problem(); !problem.empty()) return fail(problem);
  set("ROTA_SIM_KERNELS", prepend(kernels, "ROTA_SIM_KERNELS"));
  std::string faults;
  for (const std::string& each : options.faults) faults += (faults.empty() ? "" : ",") + each;
  if (!faults.empty()) set("ROTA_SIM_FAULTS", faults);
  const bool own_log = !is_set("ROTA_SIM_LOG");
  const std::string log = folder.path() + "/log";
  if (own_log) set("ROTA_SIM_LOG", log);

  const int status = run_and_wait(launch, signals,
                                  {.ended = nullptr,
                                   .signalled = nullptr,
                                   .clean_up = [&folder] { folder.remove(); },
                                   .in_place =
                                       [&] {
                                         write_message("rota sim: the program runs without a summary, and " +
                                                       folder.keep() + " stays until the next rota sim\n");
                                         return launch;
                                       },
                                   .adopts = {}});
  if (own_log) report_unsimulated(log);
  return status;
}

}  // namespace

std::optional<SimulatedGpus> parse_simulated_gpus(const std::string& text) {
  SimulatedGpus gpus{text, 1};
  const size_t cross = text.rfind('x');
  // An x may be part of a card's name (rtx4090).
  if (cross != std::string::npos && std::ranges::count(sim::profile_names(), text) == 0) {
    const char* end = text.data() + text.size();
    int count = 0;
    const auto [stop, code] = std::from_chars(text.data() + cross + 1, end, count);
    if (code == std::errc{} && stop == end) gpus = {text.substr(0, cross), count};
  }
  if (gpus.count < 1 || gpus.count > kMostGpus) return std::nullopt;
  return gpus;
}

void register_sim(CLI::App& app) {
  auto options = std::make_shared<SimOptions>();
  CLI::App* command = app.add_subcommand("sim", "start a program on simulated GPUs");
  command
      ->add_option("--gpu", options->gpu,
                   fmt::format("the card and how many of it: {}, such as h200x2 (default: the first)",
                               fmt::join(sim::profile_names(), ", ")))
      ->check([](const std::string& text) {
        const auto gpus = parse_simulated_gpus(text);
        if (!gpus || text.empty()) return "'" + text + "' is not a set of GPUs: use a card and 1 to 8, such as h200x2";
        const std::vector<std::string> names = sim::profile_names();
        if (gpus->card.empty() || std::ranges::count(names, gpus->card) != 0) return std::string();
        return fmt::format("there is no card '{}': use {}, or h200x2 for two; --profile FILE for another card",
                           gpus->card, fmt::join(names, ", "));
      });
  command
      ->add_option("--profile", options->profile,
                   "file that describes another card (share/doc/rota/tools/simgpu/README.md)")
      ->check(CLI::ExistingFile);
  command->add_option("--memory", options->memory, "memory of each GPU, such as 16G (default: the card's)")
      ->check([](const std::string& text) {
        const auto bytes = parse_bytes(text);
        if (bytes && *bytes >= sim::kLeastMemory && *bytes <= sim::kMostMemory) {
          return std::string();
        }
        return "'" + text + "' is not a size from 8M to 256G: use bytes with an optional K, M or G, such as 16G";
      });
  command->add_option("--driver", options->driver, "the driver's CUDA version, such as 12.4")
      ->check([](const std::string& text) {
        if (sim::parse_driver_version(text) != 0) return std::string();
        return "'" + text + "' is not a CUDA version from 6.0 on: use e.g. 12.4";
      });
  command
      ->add_option("--kernels", options->kernels,
                   "a library of kernels (include/rota/simgpu/kernel.h); may be repeated")
      ->allow_extra_args(false)
      ->check(kernels_problem);
  command
      ->add_option("--unregistered", options->unregistered,
                   "kernels that no library has: fail (default) makes their look-up fail; skip makes them do nothing, "
                   "in the time "
                   "of an empty kernel")
      ->check(CLI::IsMember({"fail", "skip"}));
  command
      ->add_option("--fault", options->faults,
                   "a call to fail, such as cuMemAlloc@3=CUDA_ERROR_OUT_OF_MEMORY; may be repeated")
      ->allow_extra_args(false)
      ->check([](const std::string& text) {
        sim::Faults faults;
        std::string error;
        return sim::parse_faults(text, &faults, &error) ? std::string() : error;
      });
  command->add_option("--time-scale", options->time_scale, "real seconds per simulated second; 0: nothing waits")
      ->check([](const std::string& text) {
        // The driver's own rule (state/options.cpp), which also rejects not-a-number.
        char* end = nullptr;
        const double scale = std::strtod(text.c_str(), &end);
        if (!text.empty() && *end == '\0' && (scale == 0 || (scale >= 0.001 && scale <= 1e6))) return std::string();
        return "'" + text + "' is not a time scale: use 0, or a number from 0.001 to 1000000";
      });
  command->add_flag("--virtual-clock", options->virtual_clock, "exact simulated time, for a single process");
  command->add_option("--state", options->state, "file with the simulated machine's state, for commands that share it")
      ->check([](const std::string& path) { return path.empty() ? std::string("name a file") : std::string(); });
  command->prefix_command();
  command->callback([options, command] {
    options->command = command->remaining();
    if (options->command.empty()) throw CLI::RequiredError("the program and its arguments");
    if (options->command[0].starts_with('-')) throw CLI::ExtrasError({options->command[0]});
    throw CLI::RuntimeError(simulate(*options));
  });
}

}  // namespace rota::tool
