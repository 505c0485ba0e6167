// The parts of emit_driver(), and what they share.
#pragma once

#include <string>
#include <vector>

#include "codegen/emit.h"
#include "codegen/model.h"

namespace rota::codegen {

// "api::CUdeviceptr* dptr, size_t bytesize" and "dptr, bytesize".
std::string qualified_parameters(const Function& function);
std::string argument_names(const Function& function);

Result<std::vector<EmittedFile>> emit_gates(const Inputs& inputs);
EmittedFile emit_signatures_test(const Inputs& inputs);

}  // namespace rota::codegen
