// Which build's list of symbols this is: the thin preload and the core may be of different builds, and two lists of the
// same length would have calls go to other functions.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace rota {

inline constexpr char kSymbolListNames[] =
#define ROTA_SYMBOL(name) #name "\0"
#include "generated/driver_symbols.inc"
#undef ROTA_SYMBOL
    ;

// FNV-1a; reads every byte, the zeros between the names included.
template <size_t kBytes>
constexpr uint64_t symbol_list_hash(const char (&names)[kBytes]) {
  uint64_t hash = 14695981039346656037U;
  for (size_t i = 0; i < kBytes; ++i) hash = (hash ^ static_cast<unsigned char>(names[i])) * 1099511628211U;
  return hash;
}

inline constexpr uint64_t kSymbolListHash = symbol_list_hash(kSymbolListNames);

}  // namespace rota
