// What is generated around a driver function, derived from the policy's facts. This is the only place that says how
// each fact is emitted.
#pragma once

#include "codegen/model.h"
#include "codegen/policy.h"

namespace rota::codegen {

enum class CaptureGuard { kNone, kBegin, kEnd };

struct Guard {
  bool submits = false;  // waits for the lease
  // Raises the thread's depth word during the call, so that no memory moves under it. False for calls that submit (the
  // gate raises it), and for calls that may wait for other processes or run the program's own code: a move of memory
  // waits for the word, and would wait for them.
  bool holds_memory = false;
  // A call that the driver refuses for lack of memory is retried once others have evicted theirs. Calls that submit are
  // always retried.
  bool needs_room = false;
  CaptureGuard capture = CaptureGuard::kNone;
  bool marks = false;  // others can access what it exports: marks the process once it has succeeded
  // If memory is not held during the call, the mark comes first, whatever the call's result.
  bool marks_before = false;

  bool any() const { return submits || holds_memory || needs_room || capture != CaptureGuard::kNone || marks; }
};

// `policy` may be null: nothing is known about the function.
Guard guard_of(const Api& api, const Function& function, const FunctionPolicy* policy);

}  // namespace rota::codegen
