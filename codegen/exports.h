// The names that libraries export.
#pragma once

#include <string>
#include <vector>

#include "codegen/model.h"
#include "scheduler/base/result.h"

namespace rota::codegen {

// The exported function names of a shared library (ELF, 64 bit), or the lines of a text file (# begins a comment);
// sorted if they come from a library.
Result<std::vector<std::string>> read_exports(const std::string& path);

// A library's DT_SONAME.
Result<std::string> read_soname(const std::string& path);

// How what a libcudart exports differs from what the headers of its release declare.
Result<RuntimeLibrary> read_runtime_library(const std::string& path, const Api& runtime);

}  // namespace rota::codegen
