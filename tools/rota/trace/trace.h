// `rota trace`: runs a program with tracing, and reads what was recorded.
#pragma once

#include <CLI/App.hpp>

namespace rota::tool {

// Adds `trace [--dir DIR] [--] command…`, `trace show DIR` and `trace export DIR`. The chosen one runs as the callback;
// its exit status is thrown as CLI::RuntimeError where it is not 0, since that is how CLI11 hands a status to main.
void register_trace(CLI::App& app);

}  // namespace rota::tool
