// What a header says and the preprocessor swallows.
//
// A macro that is set or missing can hide half of a header's functions from every compiler, without a diagnostic. So
// the text is read once more as text: a function that it declares, and that neither parse has seen, is an error.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "codegen/result.h"

namespace rota::codegen {

// `headers`: file names within `include_directory`; those that are not there are left out. `declared`: every name that
// a parse has seen. The error names the first few by file and line.
std::optional<Error> find_hidden_declarations(const std::string& include_directory,
                                              const std::vector<std::string>& headers,
                                              const std::set<std::string>& declared);

}  // namespace rota::codegen
