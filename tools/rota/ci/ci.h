// `rota ci`: the command.
#pragma once

#include <CLI/App.hpp>

namespace rota::ci {

void register_ci(CLI::App& app);

}  // namespace rota::ci
