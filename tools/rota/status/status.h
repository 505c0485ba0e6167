// `rota status`: which GPUs there are, who holds them, who waits.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "tools/rota/status/request.h"

namespace rota::tool {

void register_status(CLI::App& app);

// `rota status --watch` without its other options. Returns how the command is to end.
int watch_status(double every);

// An option for the interval in seconds between two queries.
void add_seconds_option(CLI::App& command, const std::string& name, double& seconds, const std::string& help);

// One JSON object, as status.schema.json describes it.
std::string status_as_json(const Status& status, const std::string& socket);
// Lines for a person.
std::string status_as_text(const Status& status, const std::string& socket);

}  // namespace rota::tool
