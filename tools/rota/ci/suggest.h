// Settings for a rig without rota: how much memory each test needs, as CTest, PyTorch and JAX express it.
#pragma once

#include <string>

#include "tools/rota/report/model.h"

namespace rota::ci {

// Lines to copy. A tenth is added to each peak, since a test would fail with exactly its peak as limit.
std::string suggestions(const report::Model& model);

}  // namespace rota::ci
