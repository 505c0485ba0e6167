// Bytes that a call has reserved in the ledger until it has made its allocation, or has failed.
#pragma once

#include <cstdint>

#include "runtime/core/undo.h"
#include "runtime/memory/ledger.h"

namespace rota::memory {

// begin() once they are reserved, keep() once they belong to an entry.
class Reserved : public Undo {
 public:
  Reserved(Ledger& ledger, int device, std::uint64_t bytes, Kind kind, const void* frame = __builtin_dwarf_cfa())
      : Undo(&release, &ledger, device, bytes,
             static_cast<std::uint32_t>(kind.route) << 8 | static_cast<std::uint32_t>(kind.backing), frame) {}

 private:
  static void release(void* ledger, int device, std::uint64_t bytes, std::uint32_t kind) {
    static_cast<Ledger*>(ledger)->release(device, bytes,
                                          {static_cast<Route>(kind >> 8), static_cast<Backing>(kind & 0xff)});
  }
};

}  // namespace rota::memory
