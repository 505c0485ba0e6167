// One API out of several releases of it: every function and type that any of them has, each as the newest release that
// has it declares it.
//
// That works because a function of the driver keeps its signature for ever (a changed one gets a new symbol, _v2), and
// one of the runtime does within a major release. unite() proves it for the releases at hand.
#pragma once

#include <string>
#include <vector>

#include "codegen/model.h"
#include "codegen/result.h"

namespace rota::codegen {

struct ReleasedApi {
  std::string release;
  const Api* api = nullptr;
};

// `releases` from the oldest on, at least one. An error names the function whose arguments are passed differently in
// two of them. Enumerators that a later release dropped are kept behind the later ones; a value that was moved to
// another name (…_MAX) is the newest's. Parameter::smallest is filled in.
Result<Api> unite(const std::vector<ReleasedApi>& releases);

// How a function's arguments and result are passed: equal for two functions if a caller of one may call the other.
Result<std::string> calling_shape(const Api& api, const Function& function);

}  // namespace rota::codegen
