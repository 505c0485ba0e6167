// Limit events as lines of an event log (event_log.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "scheduler/limits/limit_event.h"
#include "scheduler/log/log_words.h"

namespace rota::scheduler {

// `now` is the limits' time, `logged` the log's, which differ where a simulated GPU's time is stretched. An account's
// name and remedy, which only messages need, are left out.
std::string log_lines(const LimitEvent& event, Time now, Time logged);
std::string log_lines(const Quota& quota, const LimitDecisions& decisions);

// The event of this name. Nothing: there is none.
std::optional<LimitEvent> read_limit_event(std::string_view name, Words& words);

}  // namespace rota::scheduler
