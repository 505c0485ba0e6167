// What a rig's user may want to change: tests that mostly waited, and how many tests at once were useful.
#pragma once

#include <string>
#include <vector>

#include "tools/rota/report/model.h"

namespace rota::ci {

// One line each.
std::vector<std::string> rig_notes(const report::Model& model);

}  // namespace rota::ci
