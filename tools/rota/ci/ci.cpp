// `rota ci [options] [--] command …`
#include "tools/rota/ci/ci.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "scheduler/core/settings.h"
#include "tools/rota/ci/rig.h"
#include "tools/rota/report/report.h"
#include "tools/rota/run/options.h"
#include "tools/rota/run/output.h"

namespace rota::ci {
namespace {

bool is_set(const char* name, std::string_view value) {
  const char* const set = getenv(name);
  return set != nullptr && set == value;
}

// The same command in a machine of simulated GPUs; returns only if that cannot be started.
int on_simulated(const std::string& gpu, const CLI::App& command, const std::vector<std::string>& program) {
  const std::string self = tool::own_executable();
  std::vector<std::string> arguments = {self, "sim", "--gpu", gpu, "--", self, "ci"};
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || option->get_name() == "--sim" || option->get_lnames().empty()) continue;
    const std::string name = "--" + option->get_lnames().front();
    if (option->get_items_expected_max() == 0) {
      arguments.push_back(name);
      continue;
    }
    for (const std::string& value : option->results()) arguments.insert(arguments.end(), {name, value});
  }
  arguments.push_back("--");
  arguments.insert(arguments.end(), program.begin(), program.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(self.c_str(), argv.data());
  tool::write_message(fmt::format("rota ci: cannot start {}: {}\n", self, std::strerror(errno)));
  return kRigFailed;
}

}  // namespace

void register_ci(CLI::App& app) {
  CLI::App* const ci =
      app.add_subcommand("ci", "run tests, as many at once as you like, and report what each of them did on the GPUs");
  auto launch = std::make_shared<tool::LaunchOptions>();
  auto options = std::make_shared<RigOptions>();
  auto sim = std::make_shared<std::string>();
  ci->add_option("--report-dir", options->report_folder,
                 "folder to keep: the report in all formats, and what it was made of, for rota report; replaces an "
                 "earlier report");
  ci->add_option("--junit", options->junit, "file for the report as JUnit XML");
  ci->add_option("--json", options->json, "file for the report as JSON");
  ci->add_option("--html", options->html, "file for the report as one page");
  ci->add_flag("--github", options->github,
               "annotations for GitHub Actions on standard output (default there: GITHUB_ACTIONS=true)");
  ci->add_flag(
      "--suggest", options->suggest,
      "print the memory that each test needs as CTest properties, and that of the largest as fractions for PyTorch and "
      "JAX");
  ci->add_option("--repeat", options->repeat,
                 "run each test that many times in its process (pytest with rota's plugin, GoogleTest): growth from "
                 "one time to the next is a finding")
      ->check(CLI::Range(1U, 1000000U));
  ci->add_option(
        "--gpus-per-test", options->gpus_per_test,
        "each test sees only that many of the GPUs that the command sees, those with most free memory (default: all)")
      ->check(CLI::Range(1U, 64U));
  ci->add_option_function<std::string>(
        "--hang-after", [options](const std::string& text) { options->hang_after = *scheduler::parse_duration(text); },
        "say where a process is stuck that has made no CUDA call but queries for this long, as in 300s, and end it if "
        "it is a test "
        "or inside a call")
      ->type_name("TIME")
      ->check([](const std::string& text) {
        if (scheduler::parse_duration(text)) return std::string();
        return "'" + text + "' is not a duration above 0: use e.g. 300s";
      });
  tool::add_system_preload_option(*ci, launch);
  report::add_judging_options(*ci, options->judging);
  ci->add_option("--sim", *sim, "run on simulated GPUs, such as h100 or h200x2 (rota sim says more)");
  tool::add_launch_options(*ci, launch);
  ci->footer(
      "With --baseline, a test whose needs are known there begins its GPU work when they fit. Waiting for the GPU "
      "counts "
      "against a test's own time-out. Exit status: the "
      "command's, if that is not 0; 3 if there are findings; 125 if the rig failed.");
  ci->prefix_command();
  ci->callback([=] {
    launch->command = tool::program_of(*ci);
    if (!sim->empty()) throw CLI::RuntimeError(on_simulated(*sim, *ci, launch->command));
    options->launch = *launch;
    options->name = launch->name;
    options->github = options->github || is_set("GITHUB_ACTIONS", "true");
    throw CLI::RuntimeError(run_rig(*options));
  });
}

}  // namespace rota::ci
