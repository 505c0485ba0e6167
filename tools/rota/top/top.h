// `rota top`: a live view of what `rota status` knows.
#pragma once

#include <CLI/App.hpp>

namespace rota::tool {

void register_top(CLI::App& app);

}  // namespace rota::tool
