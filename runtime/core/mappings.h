// The process's mappings, as /proc/self/maps lists them.
#pragma once

#include <cstdint>
#include <optional>

namespace rota {

struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool shared = false;  // other processes may have the same memory (MAP_SHARED)
  bool contains(std::uintptr_t address) const { return address >= begin && address < end; }
};

// The one that an address lies in; nothing: none, or the list cannot be read. Takes microseconds, or milliseconds where
// there are thousands of mappings before it.
std::optional<Mapping> mapping_at(std::uintptr_t address);

}  // namespace rota
