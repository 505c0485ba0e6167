// `rota control`: changes the settings of a running rotad, or ends it.
#pragma once

#include <CLI/App.hpp>

namespace rota::tool {

void register_control(CLI::App& app);

}  // namespace rota::tool
