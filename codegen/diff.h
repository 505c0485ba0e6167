// What changed between two releases, by spelling and layout; struct tags and the order of declarations do not count.
#pragma once

#include <string>
#include <vector>

#include "codegen/model.h"

namespace rota::codegen {

// Lines of text: "+ function …" added, "- …" removed, "~ … : before -> after" changed. Empty: no difference.
std::vector<std::string> diff_models(const Model& before, const Model& after);

}  // namespace rota::codegen
