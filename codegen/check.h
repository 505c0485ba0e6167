// What `rota-codegen check` finds wrong. Every problem is one line that names the thing and the remedy.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "codegen/emit.h"
#include "codegen/extract.h"
#include "scheduler/base/result.h"

namespace rota::codegen {

using Problems = std::vector<std::string>;

// Files of `directory` that differ from what the generator emits now, are missing, or are no longer emitted.
Problems check_generated(const std::vector<EmittedFile>& files, const std::string& directory);

// Functions that are not in the policy, with the facts that their documentation suggests.
Problems check_reviewed(const Inputs& inputs);

// Entries of the policy for functions or parameters that do not exist, or that contradict themselves.
Problems check_policy(const Inputs& inputs);

// Versions and stream forms that runtime/overrides.inc omits although it has others of the same function, and names in
// it that no header declares.
Problems check_overrides(const Inputs& inputs);

// Functions that allocate, free, export, capture, or create or end a context, and that nothing handles: no override, no
// generated gate, and no reason in the policy why they may pass. Overrides that bypass the generated gate of a function
// that submits work. Functions that may get addresses of evicted memory, unless the policy says why. Needless reasons.
Problems check_binding(const Inputs& inputs);

// Compares the documentation with the policy: a query with a stream parameter or a note about asynchrony needs a
// reason.
Problems check_documentation(const Inputs& inputs);

// Exported names without a thunk, except the debugger's (cudbg*).
Problems check_exports(const Inputs& inputs, const std::vector<std::string>& exports, const std::string& source);

// Pointer parameters that the policy describes, and those whose direction and length only the type suggests, such as
// "cudaMalloc.devPtr". Versions of a function share an entry; a libcudart major with facts of its own has another.
struct PointerReview {
  std::size_t stated = 0;
  std::vector<std::string> unreviewed;
};
PointerReview review_pointers(const Inputs& inputs);

// Checks a list of functions that traces of programs contain (exact symbols, one per line, # begins a comment): their
// unreviewed pointer parameters, and names that no API has.
Problems check_calls(const Inputs& inputs, const std::vector<std::string>& calls, const std::string& source);

// Compares what the headers of one release declare with its model, and its libcudart and CUPTI with both.
struct ReleaseSources {
  ExtractOptions headers;
  std::string release;  // the release that the headers must have; empty: the one that cuda.h states
  std::string cudart;   // a libcudart.so of that release; empty: not checked
  std::string cupti;    // folder with cupti_driver_cbid.h and cupti_runtime_cbid.h; empty: not checked
};
Problems check_release(const Inputs& inputs, const ReleaseSources& sources);

}  // namespace rota::codegen
