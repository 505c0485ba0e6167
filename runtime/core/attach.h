// The core's first step inside a program: take over the tables of the thin preload and fill its slots.
#pragma once

#include <optional>

#include "generated/driver_symbols.h"
#include "runtime/preload/attachment.h"

namespace rota::interpose {

// Fills real::table, next::table and every slot, and makes the Runtime. Returns 0, or another value without having
// changed a slot. Never throws. See attachment.h for who may call and what must not happen inside.
//
// `start_accounting` (may be null) is called before: if it returns a table, its non-null entries go into next::table
// instead of what would be there, which is stored in `targets`.
//
// `start_tracing` (may be null) is called before the slots are filled: if it returns a table, its non-null entries go
// into the slots and find what they replace in next::table.
using StartTracing = void* const*();
struct Accounting {
  void* const* counters;  // null: none
  void** targets;
};
using StartAccounting = Accounting(const RotaAttachment& attachment);
int attach(const RotaAttachment& attachment, StartTracing* start_tracing,
           StartAccounting* start_accounting = nullptr) noexcept;

// After attach; constant from then on.
bool driver_found() noexcept;
// Whether the real driver has this function (without a driver: no).
bool available(Symbol symbol) noexcept;
// The address that the shim exports under this symbol's name.
void* thunk(Symbol symbol) noexcept;
// The symbol that a real function's address belongs to. Where a driver gives one address several names, the one that
// was asked for is preferred, with or without a suffix (base name `wanted`, may be null). Empty for a pointer that is
// no known export.
std::optional<Symbol> symbol_at(const void* real_function, const char* wanted) noexcept;

}  // namespace rota::interpose
