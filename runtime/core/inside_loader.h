// Whether the calling thread is inside the dynamic loader, and so holds its lock: in a constructor of a library that is
// being loaded, or a destructor at the end of the process. Then it must not wait for a thread that might load
// something.
#pragma once

namespace rota {

// By the thread's stack, as far as it can be read: code without unwind information ends it.
bool inside_loader();

}  // namespace rota
