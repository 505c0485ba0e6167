// Names and texts of errors; null for an unknown number.
#pragma once

#include "tools/simgpu/driver/api.h"

namespace rota::sim {
const char* error_name(CUresult error);
const char* error_text(CUresult error);
}  // namespace rota::sim

namespace rota::sim::cudart {
// The runtime's errors: mostly the driver's numbers under its own names. Never null.
const char* runtime_error_name(int error);
const char* runtime_error_text(int error);
}  // namespace rota::sim::cudart
