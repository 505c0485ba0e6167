// What a rig's user may want to change: tests that mostly waited, and how many at once were worth it.
#pragma once

#include <string>
#include <vector>

#include "tools/rota/report/model.h"

namespace rota::ci {

// A line each.
std::vector<std::string> rig_notes(const report::Model& model);

}  // namespace rota::ci
