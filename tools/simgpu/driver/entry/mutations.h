// Mutations: defects that ROTA_SIM_MUTATIONS=a,b switches on by name, to see that a test notices them. The list is
// mutations.inc; beside it every function can be broken in a general way (entry.h): `lenient:cuX` succeeds whatever it
// did, `idle:cuX` does nothing, `refuse:cuX` fails, and `waits:cuX` first waits for all work of the process. Off by
// default, at the cost of one byte read where the behaviour is.
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
