// `rota run`: starts a program so that it takes turns with others on the GPUs that it uses.
#pragma once

#include <CLI/App.hpp>

namespace rota::tool {

void register_run(CLI::App& app);

}  // namespace rota::tool
