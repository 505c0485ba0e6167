#include "runtime/core/one_allocation.h"

namespace rota {

[[gnu::tls_model("initial-exec")]] constinit thread_local OneAllocation::Here OneAllocation::here{};

}  // namespace rota
