// Merges several releases of an API into one: every function and type that any of them has, as declared by the newest
// release that has it.
//
// This works because a driver function never changes its signature (a changed one gets a new symbol, _v2), and a
// runtime function keeps its signature within a major release. unite() verifies this for the given releases.
#pragma once

#include <string>
#include <vector>

#include "codegen/model.h"
#include "scheduler/base/result.h"

namespace rota::codegen {

struct ReleasedApi {
  std::string release;
  const Api* api = nullptr;
};

// `releases`: oldest first, at least one. An error names the function whose arguments are passed differently in two of
// them. Enumerators that a later release removed come after the later ones; where a name's value changed (…_MAX), the
// newest value counts. Parameter::smallest is filled in.
Result<Api> unite(const std::vector<ReleasedApi>& releases);

// How a function's arguments and result are passed: equal for two functions if a caller of one may call the other.
Result<std::string> calling_shape(const Api& api, const Function& function);

}  // namespace rota::codegen
