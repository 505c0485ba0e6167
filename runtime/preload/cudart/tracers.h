// The runtime API's symbols and tracers for every libcudart major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace rota::runtime_tracers {

struct Major {
  int major;
  const char* library;  // SONAME, and version node of its symbols
  std::uint32_t first;  // number of its first symbol
  std::uint32_t count;
};

inline constexpr Major kMajors[] = {
#define ROTA_CUDART_MAJOR(major, library, first, count) {major, #library, first, count},
#include "generated/runtime_majors.inc"
#undef ROTA_CUDART_MAJOR
};
inline constexpr std::size_t kSymbols = std::end(kMajors)[-1].first + std::end(kMajors)[-1].count;

// By number, the position in runtime_symbols.inc.
extern const char* const symbol_names[kSymbols];
// Null if the signature is not known: the call is passed on without being recorded.
extern void* const table[kSymbols];

}  // namespace rota::runtime_tracers

// Filled before the first call of a major goes through.
extern "C" void* rota_cudart_real[rota::runtime_tracers::kSymbols];
