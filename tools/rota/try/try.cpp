// `rota try [-n N] [--rounds R] [--json] [options of run] [--] command …`
#include "tools/rota/try/try.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include "tools/rota/report/format.h"
#include "tools/rota/run/daemon.h"
#include "tools/rota/run/executable.h"
#include "tools/rota/run/launch.h"
#include "tools/rota/run/options.h"
#include "tools/rota/run/output.h"
#include "tools/rota/try/copies.h"
#include "tools/rota/try/native.h"
#include "tools/rota/try/output_folder.h"
#include "tools/rota/try/processes.h"
#include "tools/rota/try/report.h"
#include "tools/rota/try/sampler.h"

namespace rota::tool {
namespace {

using attempt::Report;
using attempt::Sampler;
using attempt::Together;
using attempt::Way;

constexpr int kCannot = 125;  // rota's own status, as with env and timeout
constexpr unsigned kMostCopies = 64;
constexpr unsigned kMostRounds = 1000;

struct TryOptions {
  unsigned copies = 2;
  unsigned rounds = 1;
  bool json = false;
};

void tell(const std::string& line) {
  write_message("rota try: " + report::printable(line) + "\n");
}

// Thrown through the measurement; ends it with this exit code.
struct Stop {
  int code;
};

class Measurement {
 public:
  Measurement(const TryOptions& options, LaunchOptions launch) : options_(options), launch_(std::move(launch)) {
    // The rotad that is found or started now serves all copies.
    launch_.mode.clear();
    launch_.quantum.clear();
    report_.command = launch_.command;
    report_.ways.push_back({.name = "alone", .copies = 1, .under_rota = false, .rounds = {}});
    if (options_.copies > 1) {
      report_.ways.push_back({.name = fmt::format("{} natively", options_.copies),
                              .copies = options_.copies,
                              .under_rota = false,
                              .rounds = {}});
    }
    report_.ways.push_back({.name = fmt::format("{} under rota", options_.copies),
                            .copies = options_.copies,
                            .under_rota = true,
                            .rounds = {}});
  }

  // The exit code.
  int run() {
    if (!folder_.problem().empty()) {
      tell(folder_.problem());
      return kCannot;
    }
    try {
      warm_up();
      for (unsigned round = 1; round <= options_.rounds; ++round) {
        // In alternating order, so that drift affects all ways alike.
        for (std::size_t i = 0; i < report_.ways.size(); ++i) {
          measure(report_.ways[round % 2 == 1 ? i : report_.ways.size() - 1 - i], round);
        }
      }
    } catch (const Stop& stop) {
      return stop.code;
    }
    bool failed = false;
    bool failed_under_rota = false;
    for (const Way& way : report_.ways) {
      const attempt::Figures all = attempt::figures(way);
      if (all.finished == all.started) continue;
      failed = true;
      failed_under_rota = failed_under_rota || way.under_rota;
    }
    if (failed) report_.folder = folder_.keep();
    report_.nvml_problem = sampler_.nvml_problem();
    report_.rotad_is_here = sampler_.rotad_is_here();
    if (!print("rota try", options_.json ? attempt::as_json(report_) : attempt::as_table(report_))) return kCannot;
    return failed_under_rota ? 1 : 0;
  }

 private:
  Way::Round run_once(const Way& way, const std::string& name) {
    sampler_.look_before();
    Way::Round round;
    const auto program = [&] {
      if (way.under_rota) return run_in_place(launch_);
      attempt::leave_rota();
      LaunchOptions native;
      native.command = launch_.command;
      native.share = false;
      return run_in_place(native);
    };
    std::string stem = folder_.path() + "/" + name;
    std::replace(stem.begin() + static_cast<std::ptrdiff_t>(folder_.path().size()), stem.end(), ' ', '-');
    round.run = attempt::run_copies(
        signals_, way.copies, stem, program, [&] { sampler_.start(); }, [&] { round.seen = sampler_.stop(); });
    if (!round.run.problem.empty()) {
      tell(round.run.problem);
      throw Stop{kCannot};
    }
    if (round.run.interrupted != 0) {
      tell(fmt::format("ended by signal {} ({})", round.run.interrupted, strsignal(round.run.interrupted)));
      folder_.remove();
      // The user should not have to wait for what the sampler may be waiting for.
      _exit(end_as(ended_by(round.run.interrupted)));
    }
    if (way.under_rota) note_what_rota_said(round.run);
    return round;
  }

  // One copy each way. This also shows whether the program runs at all, and which GPUs it uses.
  void warm_up() {
    Way alone{.name = "alone", .copies = 1, .under_rota = false, .rounds = {}};
    tell("warm-up: alone, natively");
    const Way::Round native = run_once(alone, "warm-up natively");
    stop_if_failed(native.run);
    alone.under_rota = true;
    tell("warm-up: alone, under rota");
    const Way::Round under_rota = run_once(alone, "warm-up under rota");
    if (const attempt::CopyEnd& copy = under_rota.run.copies[0]; copy.code != 0) {
      report_.remarks.push_back("alone under rota it " + attempt::how_it_failed(copy));
      report_.folder = folder_.keep();
    }
    sampler_.watch(under_rota.seen.gpus);
  }

  void stop_if_failed(const Together& alone) {
    const attempt::CopyEnd& copy = alone.copies[0];
    if (copy.code == 0) return;
    tell("alone and without rota the program " + attempt::how_it_failed(copy));
    tell(fmt::format("what it printed is in {}", folder_.keep()));
    throw Stop{copy.signal != 0 ? ended_by(copy.signal) : copy.code};
  }

  void measure(Way& way, unsigned round) {
    tell(options_.rounds > 1 ? fmt::format("round {} of {}: {}", round, options_.rounds, way.name) : way.name);
    way.rounds.push_back(run_once(way, fmt::format("{} {}", way.name, round)));
  }

  // Lines that begin with "rota: ", each once: they may say that the program ran without it.
  void note_what_rota_said(const Together& run) {
    constexpr std::size_t kMost = 5;
    for (const attempt::CopyEnd& copy : run.copies) {
      std::ifstream file(copy.output);
      for (std::string line; report_.remarks.size() < kMost && std::getline(file, line);) {
        if (line.starts_with("rota: ") && said_.insert(line).second) report_.remarks.push_back(line);
      }
    }
  }

  const TryOptions options_;
  LaunchOptions launch_;
  const attempt::SignalsTaken signals_;
  attempt::OutputFolder folder_{"rota-try"};
  Sampler sampler_;
  Report report_;
  std::set<std::string> said_;
};

int measure(const TryOptions& options, const LaunchOptions& launch) {
  attempt::start_again_without_rota();
  const std::string& program = launch.command[0];
  const Executable executable = inspect_command(program);
  if (executable.error == ENOENT) {
    tell(not_found_text(program));
    return 127;
  }
  if (executable.error != 0) {
    tell(fmt::format("{}: {}", executable.path, strerror(executable.error)));
    return 126;
  }
  if (std::filesystem::path(program).filename() == "rota") {
    tell(
        "name the program itself: it is started without rota and under it (on simulated GPUs: `rota sim -- rota try -- "
        "…`)");
    return kCannot;
  }
  const Daemon daemon = find_or_start_daemon({launch.mode, launch.quantum});
  if (!daemon.problem.empty()) tell(daemon.problem);
  if (daemon.socket.empty() || daemon.silent) return kCannot;
  setenv("ROTA_SOCKET", daemon.socket.c_str(), 1);
  // Only now: rotad is detached and outlives this.
  attempt::adopt_orphans();
  return Measurement(options, launch).run();
}

}  // namespace

void register_try(CLI::App& app) {
  auto options = std::make_shared<TryOptions>();
  auto launch = std::make_shared<LaunchOptions>();
  CLI::App* command = app.add_subcommand(
      "try", "run a program alone, N copies at once natively, and N under rota, and compare: times, waits, memory");
  command->add_option("-n,--copies", options->copies, "how many copies at once (default 2)")
      ->check([](const std::string& text) {
        unsigned value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= 1 && value <= kMostCopies) return std::string();
        return fmt::format("'{}' is not a number of copies: use 1 to {}", text, kMostCopies);
      });
  command->add_option("--rounds", options->rounds, "how many times each is measured, in alternating order (default 1)")
      ->check([](const std::string& text) {
        unsigned value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= 1 && value <= kMostRounds) return std::string();
        return fmt::format("'{}' is not a number of rounds: use 1 to {}", text, kMostRounds);
      });
  command->add_flag("--json", options->json, "for programs");
  add_launch_options(*command, launch);
  command->footer(
      "First the program runs once natively and once under rota as a warm-up, which does not count. Its standard input "
      "is empty, and its output is kept only if a copy fails. The exit code is 0, 1 if a copy fails under rota, or the "
      "program's own if it fails alone.");
  command->prefix_command();
  command->callback([options, launch, command] {
    launch->command = program_of(*command);
    throw CLI::RuntimeError(measure(*options, *launch));
  });
}

}  // namespace rota::tool
