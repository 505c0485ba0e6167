// `rota run [--mode M] [--quantum Q] [--] command …`
#include "tools/rota/run.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "scheduler/core/settings.h"
#include "tools/rota/launch.h"

namespace rota::tool {

void register_run(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* run = app.add_subcommand("run", "start a program that shares the GPUs with others under rota");
  run->add_option("--mode", options->mode, "for a rotad that has to be started: automatic, exclusive or concurrent")
      ->check([](const std::string& text) {
        if (scheduler::parse_mode(text)) return std::string();
        return "'" + text + "' is no mode: use automatic, exclusive or concurrent";
      });
  run->add_option("--quantum", options->quantum, "for a rotad that has to be started: e.g. 100ms or 2s")
      ->check([](const std::string& text) {
        if (scheduler::parse_duration(text)) return std::string();
        return "'" + text + "' is no duration above 0: use e.g. 100ms or 2s";
      });
  run->add_option("command", options->command, "the program and its arguments")->required();
  // Everything from the program's name on is the program's, whatever it looks like.
  run->positionals_at_end();
  run->prefix_command();
  run->callback([options, run] {
    std::vector<std::string> rest = run->remaining();
    options->command.insert(options->command.end(), rest.begin(), rest.end());
    throw CLI::RuntimeError(run_in_place(*options));
  });
}

}  // namespace rota::tool
