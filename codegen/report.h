// What a release changed, for those who add it: Markdown for a pull request.
#pragma once

#include <string>

#include "codegen/emit.h"

namespace rota::codegen {

// Compares two of the inputs' models. Headings start at `###`. Lists every function that was added, changed or removed,
// every type that changed, and each decision missing in the policy, with what the headers suggest and why.
std::string release_report(const Inputs& inputs, const Model& before, const Model& after);

// COVERAGE.md: what this build knows of each release's functions.
EmittedFile emit_coverage(const Inputs& inputs);

}  // namespace rota::codegen
