// Mutations: defects that ROTA_SIM_MUTATIONS=a,b enables by name, to check that a test detects them. They are listed in
// mutations.inc. In addition every function can be broken in a general way (entry.h): `lenient:cuX` always returns
// success, `idle:cuX` does nothing, `refuse:cuX` fails, and `waits:cuX` first waits for all work of the process. Only
// the target simgpu_mutants has them (ROTA_SIM_MUTANTS, tools/simgpu/mutants), off by default; in the driver that is
// installed they are compiled out, and nothing reads the variable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "generated/driver_symbols.h"

namespace rota::sim {

enum class Mutation {
#define ROTA_MUTATION(name, text) name,
#include "tools/simgpu/driver/entry/mutations.inc"
#undef ROTA_MUTATION
  kCount
};

// A mutation that needs no code in the function itself.
enum class Broken : uint8_t { kNo, kLenient, kIdle, kRefuse, kWaits };

#ifdef ROTA_SIM_MUTANTS

// Set before the program's first call, never changed afterwards.
inline bool mutation_switches[static_cast<size_t>(Mutation::kCount) + 1] = {};

inline bool mutated(Mutation mutation) {
  return mutation_switches[static_cast<size_t>(mutation)];
}

Broken broken(Symbol symbol);
bool any_broken();

// Reads ROTA_SIM_MUTATIONS, once, when the library is loaded. Returns what is wrong with it; empty: nothing.
std::string read_mutations();

#else

constexpr bool mutated(Mutation) {
  return false;
}

constexpr Broken broken(Symbol) {
  return Broken::kNo;
}

constexpr bool any_broken() {
  return false;
}

inline std::string read_mutations() {
  return {};
}

#endif

}  // namespace rota::sim
