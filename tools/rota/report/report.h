// `rota report DIR`: what `rota run --report DIR/` kept of a job, shown or judged again.
#pragma once

#include <CLI/App.hpp>

#include "tools/rota/report/judging.h"

namespace rota::report {

void register_report(CLI::App& app);
// `options` must live as long as the command.
void add_judging_options(CLI::App& command, JudgingOptions& options);

}  // namespace rota::report
