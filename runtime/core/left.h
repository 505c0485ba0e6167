// Calls that a thread has left without returning from them: by siglongjmp, as watchdogs do, by setcontext, or in a
// signal handler that continued elsewhere. No destructor has run, so the thread's word is still raised.
//
// A call is left if its frame is no longer on the stack of its thread. `outermost` is where the frame of the call's
// function begins (__builtin_dwarf_cfa), as the thread's record says.
#pragma once

#include <sys/types.h>

namespace rota {

// For the thread itself, from a function whose own frame begins at `frame`. Also false if that is uncertain, as where
// the two frames begin at the same address: then the call counts as not left.
bool left_behind(const void* outermost, const void* frame);

// The same where the answer is certain: a deeper call than that of `frame`, which is on the same stack.
bool left_on_this_stack(const void* outermost, const void* frame);

// For another thread of this process. True only if it blocks in the kernel, with its stack shorter than it was.
bool left_by(pid_t tid, const void* outermost);

}  // namespace rota
