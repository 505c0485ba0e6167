// What `rota-codegen check` finds wrong. Every problem is one line that names the thing and the remedy.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "codegen/emit.h"
#include "codegen/result.h"

namespace rota::codegen {

using Problems = std::vector<std::string>;

// Files of `directory` that differ from what the generator emits now, are missing, or are no longer emitted.
Problems check_generated(const std::vector<EmittedFile>& files, const std::string& directory);

// Functions that the policy does not know, with the facts that their documentation suggests.
Problems check_reviewed(const Inputs& inputs);

// Entries of the policy that speak of functions or parameters that do not exist, or contradict themselves.
Problems check_policy(const Inputs& inputs);

// The documentation against the policy: a stream parameter or an asynchrony note on a mere query needs a reason.
Problems check_documentation(const Inputs& inputs);

// Exported names without a thunk; the debugger's (cudbg*) are not ours.
Problems check_exports(const Inputs& inputs, const std::vector<std::string>& exports, const std::string& source);

// The exported function names of a shared library (ELF, 64 bit), or the lines of a text file (# begins a comment).
Result<std::vector<std::string>> read_exports(const std::string& path);

struct PointerCount {
  std::size_t stated = 0;   // direction or length given in the policy
  std::size_t derived = 0;  // left to what the type suggests
};
// Pointer parameters of the driver's functions, every version of a function counted once per name.
PointerCount count_pointers(const Inputs& inputs);

}  // namespace rota::codegen
