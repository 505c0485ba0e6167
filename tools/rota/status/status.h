// `rota status`: which GPUs there are, who holds them, who waits.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "tools/rota/status/request.h"

namespace rota::tool {

void register_status(CLI::App& app);

// One JSON object, as status.schema.json describes it.
std::string status_as_json(const Status& status, const std::string& socket);
// Lines for a person.
std::string status_as_text(const Status& status, const std::string& socket);

}  // namespace rota::tool
