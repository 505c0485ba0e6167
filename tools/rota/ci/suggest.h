// What a rig without rota could be told: how much memory each test needs, in the words of CTest, PyTorch and JAX.
#pragma once

#include <string>

#include "tools/rota/report/model.h"

namespace rota::ci {

// Lines to copy. A tenth is added to each peak, since a limit that is met exactly fails.
std::string suggestions(const report::Model& model);

}  // namespace rota::ci
