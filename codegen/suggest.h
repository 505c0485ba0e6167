// What the headers suggest about a function that the policy does not know: a starting point for review, never an
// answer.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "codegen/model.h"

namespace rota::codegen {

struct Suggestion {
  std::string fact;  // as in policy.toml, as far as it is known: submits = "hStream"
  std::string why;
};

// `versions` of one base name. Empty: nothing suggests more than a query.
std::vector<Suggestion> suggest_facts(const std::vector<const Function*>& versions);
// "submits = \"hStream\"? (a stream parameter); may_block? (…)".
std::string suggestion_text(const std::vector<Suggestion>& suggestions);

// The guess for a pointer parameter, as `params` would state it: "out", "in", "string", "opaque".
std::string suggest_use(const Api& api, const Function& function, const Parameter& parameter);

// Every base name of an API with its versions, sorted.
std::map<std::string, std::vector<const Function*>> functions_by_base(const Api& api);

bool is_stream(const TypeRef& type);

}  // namespace rota::codegen
