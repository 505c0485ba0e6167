// Finds functions that a header declares and the preprocessor hides.
//
// A macro that is set or missing can hide half of a header's functions from every compiler, without a diagnostic. So
// each header is read once more as plain text: a function that it declares and that neither parse has seen is an error.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/base/result.h"

namespace rota::codegen {

// `headers`: file names within `include_directory`; missing ones are skipped. `declared`: every name that a parse has
// seen. The error names the first few functions by file and line.
std::optional<Error> find_hidden_declarations(const std::string& include_directory,
                                              const std::vector<std::string>& headers,
                                              const std::set<std::string>& declared);

}  // namespace rota::codegen
