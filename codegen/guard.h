// What is generated around a driver function, by the policy's facts: the one place that says which fact is emitted how.
#pragma once

#include "codegen/model.h"
#include "codegen/policy.h"

namespace rota::codegen {

enum class CaptureGuard { kNone, kBegin, kEnd };

struct Guard {
  bool submits = false;  // waits for the lease
  // Raises the thread's depth word during the call, so that no memory is moved under it. Not where it submits (the gate
  // does it), and not around what may wait for other processes or runs the program's own code: whoever is about to move
  // memory waits for the word, and would wait for them.
  bool holds_memory = false;
  // Refused by the driver for want of memory, it is tried again when others have made room. What submits always is.
  bool needs_room = false;
  CaptureGuard capture = CaptureGuard::kNone;
  bool marks = false;  // others reach what it hands out: marks the process once it has succeeded
  // Where memory is not held during the call, the mark comes first, whatever the call then says.
  bool marks_before = false;

  bool any() const { return submits || holds_memory || needs_room || capture != CaptureGuard::kNone || marks; }
};

// `policy` may be null: nothing is known of the function.
Guard guard_of(const Api& api, const Function& function, const FunctionPolicy* policy);

}  // namespace rota::codegen
