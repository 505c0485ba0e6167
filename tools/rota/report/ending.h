// How a process ended, in words: "ended with 0", "ended by SIGKILL".
#pragma once

#include <optional>
#include <string>

#include "tools/rota/report/session.h"

namespace rota::report {

std::string end_text(const EndRecord& end);
// `end`: if rota saw it; otherwise the process's account decides.
std::string ending_text(const ProcessAccount& process, const std::optional<EndRecord>& end);

}  // namespace rota::report
