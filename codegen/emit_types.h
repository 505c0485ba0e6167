// C++ declarations of an Api's types, with their layouts asserted.
#pragma once

#include <string>

#include "codegen/emit.h"
#include "codegen/model.h"
#include "scheduler/base/result.h"

namespace rota::codegen {

// Everything but functions, in header order, to be placed inside a namespace. Layouts are checked with static_assert.
Result<std::string> type_declarations(const Api& api);

// The type's spelling with `prefix` before a declared name: "const api::CUlaunchConfig*".
std::string qualify(const TypeRef& type, const std::string& prefix = "api::");

// A constant as a C++ literal: the most negative int has no literal, and large values need a U suffix.
std::string enumerator_value(const Enum& enumeration, std::int64_t value);

Result<EmittedFile> emit_types_h(const Inputs& inputs);

}  // namespace rota::codegen
