// Which objects belong to which context: those that end with it are not leaks.
//
// Nothing ends with a green context: the driver leaves its streams to the program.
#pragma once

#include <cstdint>
#include <optional>

#include "generated/driver_symbols.h"

namespace rota::account::objects {

struct Owner {
  std::uint64_t context;
  Symbol made_by;
};

// `handle`: of any kind of object; unique among those that live. Without memory for an entry there is none.
void made(std::uint64_t handle, Owner owner) noexcept;
// Before the call that ends the object, since from then on another thread may get the same handle for a new one. What
// is returned goes back to made() if the call fails.
std::optional<Owner> ends(std::uint64_t handle) noexcept;
// All objects of this context have ended; counts them in the account.
void context_ended(std::uint64_t context) noexcept;
// In the child of a fork: another thread may have held the lock, and the contexts are the parent's.
void forget();

}  // namespace rota::account::objects
