// The options of `rota run` that say how a program runs under rota; `rota try` has them as well.
#pragma once

#include <CLI/App.hpp>
#include <memory>

#include "tools/rota/run/launch.h"

namespace rota::tool {

void add_launch_options(CLI::App& command, const std::shared_ptr<LaunchOptions>& options);

// --system-preload (everywhere.h).
void add_system_preload_option(CLI::App& command, const std::shared_ptr<LaunchOptions>& options);

// The program and its arguments, which is all that follows the options. Usage errors are thrown.
std::vector<std::string> program_of(const CLI::App& command);

}  // namespace rota::tool
