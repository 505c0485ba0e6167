// Which objects have been destroyed and which memory has been freed lately, so that a later use is noticed: handles and
// addresses that a function ended, until some function returns them anew.
//
// A table with one place for each hash: an older entry is forgotten when a newer one takes its place, which can only
// make a use go unnoticed. Nothing is locked; a check costs a multiplication and a load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "generated/driver_symbols.h"

namespace rota::account::ended {

inline constexpr std::size_t kPlaces = std::size_t{1} << 14;
struct Place {
  std::atomic<std::uint64_t> value{0};
  std::atomic<std::uint16_t> by{0};  // the Symbol that ended it; read where the value has matched
};
extern constinit Place places[kPlaces];

inline Place& place_of(std::uint64_t value) noexcept {
  return places[(value * 0x9e3779b97f4a7c15u) >> 50];
}
inline bool holds(std::uint64_t value) noexcept {
  return value != 0 && place_of(value).value.load(std::memory_order_relaxed) == value;
}
inline void put(std::uint64_t value, Symbol by) noexcept {
  if (value == 0) return;
  Place& place = place_of(value);
  place.by.store(static_cast<std::uint16_t>(by), std::memory_order_relaxed);
  place.value.store(value, std::memory_order_relaxed);
}
inline void remove(std::uint64_t value) noexcept {
  if (holds(value)) place_of(value).value.store(0, std::memory_order_relaxed);
}
inline Symbol ended_by(std::uint64_t value) noexcept {
  return static_cast<Symbol>(place_of(value).by.load(std::memory_order_relaxed));
}

}  // namespace rota::account::ended
