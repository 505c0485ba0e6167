// Memory that other processes are giving back to the driver.
#pragma once

#include <functional>

namespace rota::driver {

// Tries something that the driver has refused for want of memory again and again, until it is not refused any more
// (`again` says true), or nobody frees any: `coming` has said no for 0.2 s, in which the free memory of the current
// context's GPU has not grown. Whether it went well in the end.
bool retry_while_freed(const std::function<bool()>& again, const std::function<bool()>& coming);

}  // namespace rota::driver
