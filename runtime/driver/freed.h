// Memory that other processes are giving back to the driver.
#pragma once

#include "runtime/core/function_ref.h"

namespace rota::driver {

// Retries something that the driver has refused for lack of memory until it is no longer refused (`again` returns true)
// or no process frees any: `coming` has returned false for 0.2 s, in which the free memory of the current context's GPU
// has not grown. Returns whether it succeeded.
bool retry_while_freed(FunctionRef<bool()> again, FunctionRef<bool()> coming);

}  // namespace rota::driver
