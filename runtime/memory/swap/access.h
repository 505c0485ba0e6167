// Sets which GPUs may use mapped memory, with as few driver calls as possible.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/memory/swap/extent.h"

namespace rota::memory {

// Memory that is mapped, and the GPUs that may use it, its owner included.
struct Allowed {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  Access access;
};

// Adds all mappings of an extent. `access`: what GPUs besides the owner may do at the extent's own address.
void add_allowed(std::vector<Allowed>& all, const Extent& extent, int owner, const Access& access);
// One driver call for adjacent memory with the same access.
api::CUresult give_access(std::vector<Allowed> all);
api::CUresult give_access(std::uint64_t address, std::uint64_t bytes, int owner, const Access& access);
// For memory that is mapped. A refusal is logged.
void change_access(std::uint64_t address, std::uint64_t bytes, int accessing, api::CUmemAccess_flags flags);

}  // namespace rota::memory
