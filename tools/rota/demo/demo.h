// `rota demo`: two programs share a GPU, on the one that is there or on a simulated one, and what was seen of it.
#pragma once

#include <CLI/App.hpp>

namespace rota::tool {

void register_demo(CLI::App& app);

}  // namespace rota::tool
