// Which GPUs may use what is mapped where: by as few calls of the driver as possible.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/memory/swap/extent.h"

namespace rota::memory {

// What may be used from where, once it is mapped: the owner included.
struct Allowed {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  Access access;
};

// All mappings of an extent; `access` is what GPUs besides the owner have at its own address.
void add_allowed(std::vector<Allowed>& all, const Extent& extent, int owner, const Access& access);
// One call of the driver for what is adjacent and allowed the same.
api::CUresult give_access(std::vector<Allowed> all);
api::CUresult give_access(std::uint64_t address, std::uint64_t bytes, int owner, const Access& access);
// For what is mapped. A refusal is logged.
void change_access(std::uint64_t address, std::uint64_t bytes, int accessing, api::CUmemAccess_flags flags);

}  // namespace rota::memory
