// `rota report DIR`: shows or judges again what `rota run --report DIR/` recorded of a job.
#pragma once

#include <CLI/App.hpp>

#include "tools/rota/report/judging.h"

namespace rota::report {

void register_report(CLI::App& app);
// `options` must live as long as the command.
void add_judging_options(CLI::App& command, JudgingOptions& options);

}  // namespace rota::report
