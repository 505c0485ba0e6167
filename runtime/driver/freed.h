// Memory that other processes are giving back to the driver.
#pragma once

#include <functional>

namespace rota::driver {

// Tries something that the driver has refused for want of memory again and again, until it is not refused any more
// (`again` says true), or nobody seems to free any: the free memory of the current context's GPU has not grown for
// 0.2 s. Without a context, which is what tells, for two seconds. Whether it went well in the end.
bool retry_while_freed(const std::function<bool()>& again);

}  // namespace rota::driver
