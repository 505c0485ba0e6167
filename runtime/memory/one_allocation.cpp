#include "runtime/memory/one_allocation.h"

namespace rota::memory {

[[gnu::tls_model("initial-exec")]] constinit thread_local OneAllocation::Here OneAllocation::here{};

}  // namespace rota::memory
