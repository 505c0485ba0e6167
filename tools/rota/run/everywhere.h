// Preloads rota also into processes whose environment a test runner or a script has cleaned (bazel, env -i): by
// /etc/ld.so.preload, in a mount namespace of the command's own.
#pragma once

#include <string>

namespace rota::tool {

// Called in the process that becomes the command, once its environment is the command's: LD_PRELOAD and what begins
// with ROTA_ go into files that only it and its children see. Empty, or one line why it cannot be done: then
// LD_PRELOAD alone reaches its children.
std::string preload_everywhere();

}  // namespace rota::tool
