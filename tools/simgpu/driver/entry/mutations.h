// Mutations: defects that ROTA_SIM_MUTATIONS=a,b enables by name, to check that a test detects them. They are listed in
// mutations.inc. In addition every function can be broken in a general way (entry.h): `lenient:cuX` always returns
// success, `idle:cuX` does nothing, `refuse:cuX` fails, and `waits:cuX` first waits for all work of the process. Off by
// default, at the cost of reading one byte at each affected place.
#pragma once

#include <cstddef>

namespace rota::sim {

enum class Mutation {
#define ROTA_MUTATION(name, text) name,
#include "tools/simgpu/driver/entry/mutations.inc"
#undef ROTA_MUTATION
  kCount
};

// Set before the program's first call, never changed afterwards.
inline bool mutation_switches[static_cast<size_t>(Mutation::kCount) + 1] = {};

inline bool mutated(Mutation mutation) {
  return mutation_switches[static_cast<size_t>(mutation)];
}

}  // namespace rota::sim
