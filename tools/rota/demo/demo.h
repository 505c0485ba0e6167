// `rota demo`: two programs share a GPU, a real one or a simulated one, and a report says what was seen.
#pragma once

#include <CLI/App.hpp>

namespace rota::tool {

void register_demo(CLI::App& app);

}  // namespace rota::tool
