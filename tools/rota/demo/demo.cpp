// `rota demo [-n N] [--sim] [--json]`. Copies of a small program (program.cpp) run natively and then under rota. Where
// there is no GPU this starts again inside `rota sim`, on a GPU that is too small for all copies together.
#include "tools/rota/demo/demo.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/address/socket_path.h"
#include "scheduler/base/descriptor.h"
#include "tools/rota/demo/story.h"
#include "tools/rota/report/format.h"
#include "tools/rota/run/daemon.h"
#include "tools/rota/run/launch.h"
#include "tools/rota/run/output.h"
#include "tools/rota/try/copies.h"
#include "tools/rota/try/native.h"
#include "tools/rota/try/output_folder.h"
#include "tools/rota/try/processes.h"
#include "tools/rota/try/report.h"
#include "tools/rota/try/sampler.h"

namespace rota::tool {
namespace {

using demo::Story;

constexpr unsigned kFewest = 2;
constexpr unsigned kMost = 8;
// Little, since moving, filling and comparing it takes time on the CPU.
constexpr const char* kSimulatedMemory = "256M";
// On a simulated GPU all copies together want more memory than there is; a real one may be shared with other programs.
constexpr double kSimulatedShare = 1.2;
constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;
// Enough threads for any GPU; a simulated one's compute on the CPU.
constexpr std::uint64_t kWords = std::uint64_t{1} << 20;
constexpr std::uint64_t kSimulatedWords = std::uint64_t{32} << 10;
// GPU time for all copies together, in seconds.
constexpr double kSeconds = 1.2;
// By the clock: on a busy machine a copy launches no more after that.
constexpr std::uint64_t kWithinMilliseconds = 1500;
// The least that a launch is taken to last, in seconds. It really lasts twice as long, except on a simulated GPU whose
// clock does not advance.
constexpr double kShortest = 0.0025;

struct DemoOptions {
  unsigned copies = kFewest;
  bool sim = false;
  bool json = false;
  // Started again inside `rota sim`: why no GPU works here; empty if --sim was given.
  std::optional<std::string> on_simulated;
};

int demo_failed(const std::string& line) {
  write_message("rota demo: " + report::printable(line) + "\n");
  return 1;
}

std::string program_path() {
  return shim_directory() + "/rota-demo";
}

bool is_missing(const std::string& path) {
  return access(path.c_str(), F_OK) != 0;
}

// A pipe whose ends the copies inherit: its end of file can be read once every copy has closed the other end, so that
// they begin to compute together.
class StartingLine {
 public:
  StartingLine() {
    if (pipe(ends_) != 0) ends_[0] = ends_[1] = -1;
  }
  ~StartingLine() { leave(); }
  StartingLine(const StartingLine&) = delete;
  StartingLine& operator=(const StartingLine&) = delete;
  bool is_there() const { return ends_[0] >= 0; }
  std::string numbers() const { return fmt::format("{},{}", ends_[0], ends_[1]); }
  void leave() {
    for (int& end : ends_) {
      if (end >= 0) close(end);
      end = -1;
    }
  }

 private:
  int ends_[2];
};

class Demo {
 public:
  explicit Demo(const DemoOptions& options) : options_(options) {
    story_.copies = options.copies;
    story_.simulated = options.on_simulated.has_value();
    story_.why = options.on_simulated.value_or("");
  }

  // The exit code; nothing: there is no GPU, for the reason in why().
  std::optional<int> run() {
    if (!folder_.problem().empty()) return demo_failed(folder_.problem());
    // Nothing is written to the user's home, which may not be writable.
    setenv("ROTA_CACHE", (folder_.path() + "/cache").c_str(), 1);
    try {
      if (!look()) {
        if (!story_.simulated) return std::nullopt;
        return demo_failed("the simulated GPU does not work: " + why_ +
                           "; see that the folder for temporary files (TMPDIR, /tmp) has free space; "
                           "`rota doctor` looks for other reasons");
      }
      if (!options_.json) {
        show(demo::opening(story_) + "\nnatively, all at once\n");
      }
      story_.natively = work("natively", false);
      if (!options_.json) {
        show("under rota, all at once, as with `rota run`\n");
      }
      if (const std::string problem = find_rotad(); !problem.empty()) return demo_failed(problem);
      story_.under_rota = work("under-rota", true);
    } catch (const Stop& stop) {
      return stop.code;
    }
    demo::judge(story_);
    show(options_.json ? demo::as_json(story_) : demo::as_text(story_));
    if (!shown_) return 1;
    if (story_.problems.empty()) return 0;
    for (const std::string& problem : story_.problems) demo_failed("not as expected: " + problem);
    return demo_failed("`rota doctor` looks for what stops rota on this machine");
  }

  const std::string& why() const { return why_; }

 private:
  // Thrown to end the demo with this exit code.
  struct Stop {
    int code;
  };

  attempt::Together run_program(unsigned copies, const std::string& name, const std::function<int()>& program,
                                const std::function<void()>& started, const std::function<void()>& ended) {
    attempt::Together run = attempt::run_copies(signals_, copies, folder_.path() + "/" + name, program, started, ended);
    if (!run.problem.empty()) throw Stop{demo_failed(run.problem)};
    if (run.interrupted != 0) {
      demo_failed(fmt::format("ended by signal {} ({})", run.interrupted, strsignal(run.interrupted)));
      folder_.remove();
      // Ends at once, without waiting for what the sampler may be waiting for.
      _exit(end_as(ended_by(run.interrupted)));
    }
    return run;
  }

  std::vector<std::string> command(const std::string& what) const {
    return {program_path(), what, "--words", std::to_string(story_.simulated ? kSimulatedWords : kWords)};
  }

  static int natively(const std::vector<std::string>& command) {
    LaunchOptions launch;
    launch.command = command;
    launch.share = false;
    return run_in_place(launch);
  }

  // If the output cannot be written, a line says so, and what was begun continues to its end.
  void show(const std::string& text) { shown_ = shown_ && print("rota demo", text); }

  // Whether there is a GPU, and which.
  bool look() {
    const auto run = run_program(1, "look", [&] { return natively(command("look")); }, [] {}, [] {});
    const attempt::CopyEnd& end = run.copies[0];
    const auto gpu = demo::gpu_of(attempt::last_line_of(end.output));
    if (end.code != 0 || !gpu) {
      const std::string said = attempt::last_line_of(end.output);
      why_ = end.signal == 0 && !said.empty() ? said : "the program " + attempt::how_it_failed(end);
      return false;
    }
    story_.gpu = *gpu;
    const double share = kSimulatedShare / options_.copies * static_cast<double>(gpu->total);
    // All together at most a quarter of the free memory, since others may use the GPU.
    story_.bytes =
        story_.simulated ? static_cast<std::uint64_t>(share) : std::min(kMostBytes, gpu->free / 4 / options_.copies);
    story_.bytes &= ~std::uint64_t{0xFFFFF};
    if (story_.bytes == 0) {
      throw Stop{
          demo_failed(fmt::format("{} has only {} MiB free: end what uses it (`rota status`, nvidia-smi), or use "
                                  "--sim",
                                  gpu->name, gpu->free >> 20))};
    }
    return true;
  }

  // Sets ROTA_SOCKET to the rotad that serves the GPU, or to a new one of this demo. Returns one line why there is
  // none.
  std::string find_rotad() {
    const protocol::SocketSearch search = protocol::find_rotad();
    story_.own_rotad = search.descriptor < 0;
    if (const Descriptor rotad(search.descriptor);
        !rotad && (search.error == EPERM || protocol::nobody_there(search.error))) {
      setenv("ROTA_SOCKET", (folder_.path() + "/rotad.sock").c_str(), 1);
    }
    // A rotad that is started is adopted, and ends with the copies.
    const Daemon daemon = find_or_start_daemon({});
    if (daemon.socket.empty() || daemon.silent) return daemon.problem + "; `rota doctor` says more";
    setenv("ROTA_SOCKET", daemon.socket.c_str(), 1);
    return {};
  }

  demo::Way work(const std::string& name, bool under_rota) {
    StartingLine line;
    if (!line.is_there()) throw Stop{demo_failed(fmt::format("cannot make a pipe: {}", strerror(errno)))};
    story_.launches =
        static_cast<std::uint64_t>(std::ceil(kSeconds / options_.copies / std::max(story_.gpu.seconds, kShortest)));
    std::vector<std::string> base = command("work");
    for (const auto& [option, value] : {std::pair<const char*, std::uint64_t>{"--bytes", story_.bytes},
                                        {"--steps", story_.gpu.steps},
                                        {"--launches", story_.launches},
                                        {"--within", kWithinMilliseconds}}) {
      base.insert(base.end(), {option, std::to_string(value)});
    }
    base.insert(base.end(), {"--beside", line.numbers(), "--start"});
    const auto program = [&] {
      LaunchOptions launch;
      launch.command = base;
      launch.command.push_back(std::to_string(getpid()));  // so that no copy takes another one's memory for its own
      return under_rota ? run_in_place(launch) : natively(launch.command);
    };
    attempt::Seen seen;
    std::unique_ptr<attempt::Sampler> sampler;
    if (under_rota) {
      sampler = std::make_unique<attempt::Sampler>();
      story_.rotad_is_here = sampler->rotad_is_here();
    }
    const auto started = [&] {
      line.leave();
      if (sampler) sampler->start();
    };
    const auto ended = [&] {
      if (sampler) seen = sampler->stop();
    };
    const attempt::Together run = run_program(options_.copies, name, program, started, ended);
    if (under_rota) note_what_rota_said(run);
    return demo::way_of(run, seen);
  }

  // Lines that begin with "rota: ", each once: they may say that a copy ran without rota. That a copy has waited for
  // another has already been said.
  void note_what_rota_said(const attempt::Together& run) {
    std::set<std::string> said;
    for (const attempt::CopyEnd& copy : run.copies) {
      std::ifstream file(copy.output);
      for (std::string each; std::getline(file, each);) {
        const bool is_told = each.starts_with("rota: waiting") && each.find("(rota-demo") != std::string::npos;
        if (each.starts_with("rota: ") && !is_told && said.insert(each).second) story_.remarks.push_back(each);
      }
    }
  }

  const DemoOptions options_;
  const attempt::SignalsTaken signals_;
  attempt::OutputFolder folder_{"rota-demo"};
  Story story_;
  std::string why_;
  bool shown_ = true;
};

// This process becomes `rota sim` with this command inside. Returns only where it cannot.
int start_again_on_simulated(const DemoOptions& options, const std::string& why) {
  const std::string library = shim_directory() + "/simgpu/libcuda.so.1";
  if (is_missing(library)) {
    return demo_failed(fmt::format("{}for a simulated GPU {} is missing: install rota again",
                                   why.empty() ? "" : "no GPU works here (" + why + "), and ", library));
  }
  {
    // Whether there is a place for a rotad of its own.
    const attempt::OutputFolder folder("rota-sim");
    if (!folder.problem().empty()) return demo_failed(folder.problem());
  }
  // Variables about the machine's real GPUs and about other kernels.
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "ROTA_SIM_KERNELS"}) unsetenv(name);
  const std::string path = own_executable();
  if (path.empty()) return demo_failed(fmt::format("/proc/self/exe: {}", strerror(errno)));
  std::vector<std::string> words = {path,
                                    "sim",
                                    "--memory",
                                    kSimulatedMemory,
                                    "--",
                                    path,
                                    "demo",
                                    "--on-simulated",
                                    why,
                                    "--copies",
                                    std::to_string(options.copies)};
  if (options.json) words.emplace_back("--json");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(path.c_str(), arguments.data());
  return demo_failed(fmt::format("{} cannot be executed: {}", path, strerror(errno)));
}

int demonstrate(const DemoOptions& options) {
  attempt::start_again_without_rota();
  if (is_missing(program_path())) return demo_failed(program_path() + " is missing: install rota again");
  // Limits, a trace or a kind of memory are of no use here, and an unsuitable one would look like a failure of rota.
  attempt::leave_rota();
  attempt::adopt_orphans();
  std::string why;
  if (!options.sim) {
    Demo demo(options);
    if (const std::optional<int> code = demo.run()) return *code;
    why = demo.why();
  }
  return start_again_on_simulated(options, why);
}

}  // namespace

void register_demo(CLI::App& app) {
  auto options = std::make_shared<DemoOptions>();
  CLI::App* command =
      app.add_subcommand("demo", "show how programs share this machine's GPU, or a simulated one, in a few seconds");
  command->add_option("-n,--copies", options->copies, "how many copies of the program at once, 2 to 8 (default 2)")
      ->check([](const std::string& text) {
        unsigned value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= kFewest && value <= kMost) return std::string();
        return fmt::format("'{}' is not a number of copies: use {} to {}", text, kFewest, kMost);
      });
  command->add_flag("--sim", options->sim,
                    "on a simulated GPU of 256 MiB, which shows programs whose memory does not fit together");
  command->add_flag("--json", options->json, "for programs");
  command->add_option("--on-simulated", options->on_simulated)->group("");
  command->footer(
      "Copies of a small CUDA program run at once natively, then under rota, and compare all of their memory with what "
      "it must hold. A real GPU gives them 2 GiB at most. Where none works, a simulated one of 256 MiB is used, on "
      "which their memory does not fit together. The exit code is 0 if everything was as expected, else 1.");
  command->callback([options] { throw CLI::RuntimeError(demonstrate(*options)); });
}

}  // namespace rota::tool
