// What a release changed, for the people who take it in: Markdown, to stand in a pull request.
#pragma once

#include <string>

#include "codegen/emit.h"

namespace rota::codegen {

// Between two of the inputs' models. Headings from `###` on. Names every function that was added, changed or removed,
// every type that changed, and each decision that the policy lacks, with what the headers suggest and why.
std::string release_report(const Inputs& inputs, const Model& before, const Model& after);

// COVERAGE.md: each release against what this build knows of its functions.
EmittedFile emit_coverage(const Inputs& inputs);

}  // namespace rota::codegen
