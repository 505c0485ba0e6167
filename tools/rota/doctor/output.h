// The output of `rota doctor`: lines for people, an object for programs.
#pragma once

#include <string>

#include "tools/rota/doctor/findings.h"

namespace rota::doctor {

// Whether there is no problem among them; warnings are allowed.
bool all_well(const Findings& findings);

// One line for each finding, its remedy indented below, and a count at the end. `verbose` names the functions that a
// finding counts.
std::string as_text(const Findings& findings, bool verbose);

// {"version", "ok", "counts": {level: number}, "findings": [{"id", "level", "text", "remedy", "values"}]}
std::string as_json(const Findings& findings, const std::string& version);

}  // namespace rota::doctor
