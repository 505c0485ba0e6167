// `rota try`: what a program gains or loses when copies of it share a GPU, without rota and under it.
#pragma once

#include <CLI/App.hpp>

namespace rota::tool {

void register_try(CLI::App& app);

}  // namespace rota::tool
