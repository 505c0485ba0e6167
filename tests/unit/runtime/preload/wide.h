// Values that use every bit of the argument registers, for driver.cpp and probe.cpp.
#pragma once

using Vector = long __attribute__((vector_size(16)));

struct Wide {
  Vector parts[8];
};
