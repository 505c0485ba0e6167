// `rota run [--mode M] [--quantum Q] [--memory M] [--gpu-mem B] [--host-mem B] [--oversubscribe] [--] command …`
#include "tools/rota/run/run.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "tools/rota/run/options.h"

namespace rota::tool {

void register_run(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* run = app.add_subcommand("run", "start a program that shares the GPUs with others under rota");
  add_launch_options(*run, options);
  // Everything from the program's name on belongs to the program, whatever it looks like: no positional option may take
  // part of it. (main.cpp removes a "--" in front of it.)
  run->prefix_command();
  run->callback([options, run] {
    options->command = program_of(*run);
    throw CLI::RuntimeError(run_in_place(*options));
  });
}

}  // namespace rota::tool
