// What fills argument registers to their last bit, for driver.cpp and probe.cpp.
#pragma once

using Vector = long __attribute__((vector_size(16)));

struct Wide {
  Vector parts[8];
};
