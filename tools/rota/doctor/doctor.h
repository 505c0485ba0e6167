// `rota doctor`: what this machine has that rota needs, what would stop it, and what to do about each.
#pragma once

#include <CLI/App.hpp>

namespace rota::tool {

void register_doctor(CLI::App& app);

}  // namespace rota::tool
