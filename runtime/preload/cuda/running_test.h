// What the test runner that started this process called the test, stored for the core before the program's own code
// runs.
#pragma once

#include <stddef.h>

#include "runtime/preload/cuda/locate.h"

namespace rota::thin {

// With the final zero; longer names are cut off. As `test` of the account's header.
inline constexpr size_t kRunningTestBytes = 512;

// Never null. One line for each runner, the outer one first (attachment.h has the form); "" for no test, and without
// ROTA_REPORT.
ROTA_HIDDEN const char* running_test() noexcept;

}  // namespace rota::thin
